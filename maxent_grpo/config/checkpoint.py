"""`checkpoint`: saving, resuming, keeping the best, stopping early."""

from dataclasses import dataclass
from enum import StrEnum

LATEST = "latest"
"""Value of `checkpoint.resume_from` that stands for the run in run.dir."""


class MetricGoal(StrEnum):
    """Which direction of a metric is better."""

    max = "max"
    min = "min"


@dataclass(slots=True)
class CheckpointConfig:
    """Checkpoints are written atomically; the newest is named in checkpoints/latest."""

    every_n_steps: int | None = None
    """Optimiser steps between checkpoints; null saves only the last step [steps]."""
    keep_last: int = 2
    """How many checkpoints rotation keeps, besides the best; 0 keeps all [checkpoints]."""
    resume_from: str | None = None
    """A run directory (its latest checkpoint) or a checkpoint folder to continue from, bit for bit; `latest` goes on with the run in run.dir from its latest checkpoint, and starts it where there is none, so that one command serves every start."""
    best_metric: str | None = None
    """Evaluation metric whose best checkpoint is kept as checkpoints/best; null keeps none."""
    best_goal: MetricGoal = MetricGoal.max
    """Whether a larger (`max`) or smaller (`min`) best_metric is better."""
    early_stop_patience: int | None = None
    """Stop after this many evaluations without a better best_metric; null never stops early [evaluations]."""
    final_model: bool = True
    """Write the trained model as a transformers folder with a model card when training ends, `model/` in the run directory, and with model.lora its adapter as `adapter/`; it takes as much disk as the weights."""

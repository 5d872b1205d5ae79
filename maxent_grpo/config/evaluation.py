"""`evaluation`: held-out measurement before, during and after training."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class EvaluationConfig:
    """Sampled evaluation on the held-out rows; its random numbers are separate from training's."""

    enabled: bool = True
    """Evaluate before and after training (and in between, see every_n_steps)."""
    every_n_steps: int | None = 50
    """Optimiser steps between evaluations; null evaluates only before and after training [steps]."""
    batch_size: int = 96
    """Prompts sampled in one call; any number [prompts]."""
    num_samples: int = 32
    """Completions sampled for each held-out prompt [completions]."""
    ks: list[int] = field(default_factory=lambda: [1, 8])
    """The k of pass@k, distinct@k and coverage@k; each at most num_samples."""
    seed: int = 20_000
    """Seed of the evaluation's sampling; the same at every evaluation and for every run seed."""

"""`logging`: what is shown and recorded."""

from dataclasses import dataclass, field
from enum import StrEnum


class Console(StrEnum):
    """Progress display."""

    auto = "auto"
    live = "live"
    plain = "plain"
    silent = "silent"


class TrackerName(StrEnum):
    """Where the record goes besides the run's own files."""

    wandb = "wandb"
    tensorboard = "tensorboard"


class WandbMode(StrEnum):
    """Whether W&B is sent what is recorded."""

    auto = "auto"
    online = "online"
    offline = "offline"


@dataclass(slots=True)
class WandbConfig:
    """A run at Weights & Biases."""

    project: str = "maxent_grpo"
    """W&B project."""
    entity: str | None = None
    """User or team that the project belongs to; null is the key's own."""
    name: str | None = None
    """Name of the run; null is made of its method, seed and folder, or is a sweep job's folder."""
    group: str | None = None
    """Runs that belong together; null is the folder of the sweep, if the run is part of one."""
    tags: list[str] = field(default_factory=list[str])
    """Tags beside those that the run's overrides give."""
    mode: WandbMode = WandbMode.auto
    """`online` sends, `offline` keeps everything in `<run>/wandb` for `wandb sync`; `auto` follows WANDB_MODE where that is set, and sends when there is a key."""
    continue_run: bool = True
    """Whether a resumed run goes on in the W&B run of the one it resumes; false begins a new one, for a branch."""


@dataclass(slots=True)
class LoggingConfig:
    """Files in the run directory and the terminal."""

    console: Console = Console.auto
    """`live` progress line, `plain` lines, `silent`, or `auto`: live on a terminal, else plain."""
    completions_every: int = 10
    """Optimiser steps between records in completions.jsonl; 0 records none [steps]."""
    completions_per_step: int = 64
    """Most completions recorded at a step, whole groups first [completions]."""
    report: bool = True
    """Draw report.png at evaluations after the first update, while drawing costs little beside the run, and at the end, and write report.html at the end."""
    trackers: list[TrackerName] = field(default_factory=list[TrackerName])
    """Where metrics, completions and settings go besides the files: `[wandb]`, `[tensorboard]` or both; none by default, so that a run asks nothing of anyone."""
    wandb: WandbConfig = field(default_factory=WandbConfig)


@dataclass(slots=True)
class WandbLoggingConfig(LoggingConfig):
    """The files, and a run at Weights & Biases, kept on this disk where there is no key."""

    trackers: list[TrackerName] = field(default_factory=lambda: [TrackerName.wandb])


@dataclass(slots=True)
class TensorBoardLoggingConfig(LoggingConfig):
    """The files, and TensorBoard's in `<run>/tensorboard`."""

    trackers: list[TrackerName] = field(default_factory=lambda: [TrackerName.tensorboard])

"""The moving parts of the training loop: what changes from step to step, and what checkpoints hold of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maxent_grpo.telemetry.health import HealthWatch
from maxent_grpo.training.carried_groups import CarriedGroups
from maxent_grpo.training.checkpoint.best import BestTracker
from maxent_grpo.training.checkpoint.store import CheckpointStore
from maxent_grpo.training.clock import PhaseClock
from maxent_grpo.training.control.base import Controller
from maxent_grpo.training.nonfinite import NonFiniteGuard
from maxent_grpo.training.profiler import StepProfiler
from maxent_grpo.training.rollout_buffer import RolloutBuffer
from maxent_grpo.training.row_stream import DataPosition
from maxent_grpo.training.sampled_rollout import RolloutAhead
from maxent_grpo.training.stopping import Stopping
from maxent_grpo.training.throughput import Yardstick
from maxent_grpo.training.types.runtime import TrainingLoopState


@dataclass
class SavePolicy:
    """When checkpoints are written, which is best, and when that ends the run."""

    store: CheckpointStore
    every_n_steps: int | None
    best: BestTracker
    newest: int | None = None
    """Step of the store's latest checkpoint if it is of this run as it goes: written by it, or what it goes on from."""


@dataclass
class LoopParts:
    """The loop's own moving parts; each has a state that checkpoints hold."""

    state: TrainingLoopState
    position: DataPosition
    buffer: RolloutBuffer
    controller: Controller
    saving: SavePolicy
    rows: Mapping[str, Mapping[str, Any]]
    """Training rows by row_id."""
    profiler: StepProfiler
    carried: CarriedGroups | None = None
    """Groups that dynamic sampling kept for the next rollout; None where every group is trained."""
    ahead: RolloutAhead | None = None
    """The rollout that is sampled while another one trains; None where each is sampled when it is needed."""
    clock: PhaseClock = field(default_factory=PhaseClock)
    health: HealthWatch = field(default_factory=HealthWatch)
    stopping: Stopping = field(default_factory=Stopping)
    guard: NonFiniteGuard = field(default_factory=NonFiniteGuard)
    yardstick: Yardstick | None = None
    """What speed is compared with; None for a model whose operations are not known."""
    until: int | None = None
    """Optimiser step after which the loop leaves the run as an interruption would, rather than at its end."""
    renders_when_drawn: bool = False
    """Whether a training row is rendered, and perhaps dropped, only when it is drawn."""

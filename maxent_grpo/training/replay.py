"""One step of a finished run again: its rollout, sampled and graded as it was, without touching the run.

The run is continued in a folder of its own from the nearest checkpoint at or before the weights that sampled the rollout, or
from its start. Planning reads files only; torch is loaded when the steps are taken.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxent_grpo.config.recorded import recorded_config
from maxent_grpo.errors import CheckpointError, DataError
from maxent_grpo.report.read import COMPLETIONS_FILE, METRICS_FILE, read_config, read_jsonl, read_metrics
from maxent_grpo.training.checkpoint.manifest import verify
from maxent_grpo.training.checkpoint.store import CHECKPOINTS
from maxent_grpo.training.metric_table import UNREPRODUCED
from maxent_grpo.training.types.logging import Writer

logger = logging.getLogger(__name__)

STALENESS = "generation/staleness"
NOT_COMPARED = (*UNREPRODUCED, "eval/")
"""Beginnings of metrics that a replay does not repeat: what measures the machine, and evaluations, which it leaves out."""

QUIET: dict[str, Any] = {
    "evaluation.enabled": False,
    "logging.console": "silent",
    "logging.report": False,
    "logging.trackers": [],
    "logging.completions_per_step": 1_000_000_000,
    "checkpoint.every_n_steps": None,
    "checkpoint.best_metric": None,
    "checkpoint.early_stop_patience": None,
    "controller.paths.state_path": None,
}
"""Settings of a replay: nothing but the step's completions is wanted."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Where a step's rollout comes from."""

    run_dir: Path
    step: int
    sampled_at: int
    """Optimiser step whose weights sampled the rollout that the step trains on."""
    checkpoint: Path | None
    """The nearest checkpoint at or before that; None begins with the run's first step."""
    metrics: dict[str, Any]
    """The line that the run recorded of the step."""
    recorded: list[dict[str, Any]]
    """The completions that the run recorded of the step; empty where it recorded none."""

    @property
    def first_step(self) -> int:
        """The step that the replay continues from."""
        return 0 if self.checkpoint is None else _step_of(self.checkpoint)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A step's completions, all of them, and its metrics."""

    completions: list[dict[str, Any]]
    metrics: dict[str, Any]


def plan_replay(run_dir: Path, step: int) -> ReplayPlan:
    """Find the rollout of a step and where to start from.

    Raises:
        DataError: the folder is no run, or the run has no such step.
    """
    config = read_config(run_dir)
    lines = {row["step"]: row for row in read_metrics(run_dir) if STALENESS in row}
    if step not in lines:
        steps = f"it recorded steps {min(lines)} to {max(lines)}" if lines else "it recorded no step"
        raise DataError(f"{run_dir} has no step {step}: {steps} ({METRICS_FILE})")
    sampled_at = step - 1 - int(lines[step][STALENESS])
    completions = read_jsonl(run_dir / COMPLETIONS_FILE) if (run_dir / COMPLETIONS_FILE).is_file() else []
    recorded = [row for row in completions if row["step"] == step]
    return ReplayPlan(run_dir, step, sampled_at, _checkpoint(run_dir, config, sampled_at), lines[step], recorded)


def perform_replay(plan: ReplayPlan, folder: Path, watchers: Sequence[Writer] = ()) -> Replayed:
    """Take the steps of the plan in ``folder``, an empty one, and return what the last of them recorded.

    Raises:
        ConfigError, DataError, CheckpointError: the run cannot be made again here.
    """
    changes = QUIET | {
        "run.dir": str(folder),
        "logging.completions_every": plan.step,
        "checkpoint.resume_from": None if plan.checkpoint is None else str(plan.checkpoint),
    }
    if plan.checkpoint is not None:
        changes["controller.paths.resume_from"] = None  # the checkpoint holds the controllers
    config = recorded_config(plan.run_dir, changes)
    from maxent_grpo.training.setup import run_from_config

    run_from_config(config, until=plan.step, watchers=watchers)
    metrics = {row["step"]: row for row in read_metrics(folder)}
    completions = [row for row in read_jsonl(folder / COMPLETIONS_FILE) if row["step"] == plan.step]
    return Replayed(completions, metrics[plan.step])


def first_difference(plan: ReplayPlan, replayed: Replayed) -> str | None:
    """What first differs from the record, in words; None where everything recorded is equal, bit for bit."""
    if len(plan.recorded) > len(replayed.completions):
        return f"the record has {len(plan.recorded)} completions of the step, the replay {len(replayed.completions)}"
    for number, (old, new) in enumerate(zip(plan.recorded, replayed.completions, strict=False), start=1):
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                where = f"completion {number} ({old.get('row_id')}): {name}"
                return f"{where} is {old.get(name)!r} in the record and {new.get(name)!r} in the replay"
    for name in _compared(plan.metrics, replayed.metrics):
        old, new = plan.metrics.get(name), replayed.metrics.get(name)
        if old != new:
            return f"metric {name} is {old} in the record and {new} in the replay"
    return None


def _compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {*old, *new} if not name.startswith(NOT_COMPARED))


def _checkpoint(run_dir: Path, config: Mapping[str, Any], latest: int) -> Path | None:
    """The newest whole checkpoint of at most step ``latest``: the run's own, or the one that the run began with."""
    origin = Path(str((config.get("checkpoint") or {}).get("resume_from")))
    candidates = [*(run_dir / CHECKPOINTS).glob("step_*"), *([origin] if origin.name.startswith("step_") else [])]
    numbered = [path for path in candidates if path.is_dir() and path.name.removeprefix("step_").isdigit()]
    for folder in sorted(numbered, key=_step_of, reverse=True):
        if _step_of(folder) > latest:
            continue
        try:
            verify(folder)
        except CheckpointError as error:
            logger.warning("passed over: %s", error)
            continue
        return folder
    return None


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))

"""Whole runs on a model of a few thousand parameters, and what they leave behind as values that can be compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache, reduce
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import safetensors.torch
from torch import Tensor

from maxent_grpo.config.load import check_object, check_values, load_config
from maxent_grpo.config.root import RootConfig
from maxent_grpo.training import setup
from maxent_grpo.training.checkpoint.run_state import SavedRunState, load_run_state
from maxent_grpo.training.checkpoint.store import find_checkpoint
from maxent_grpo.training.checkpoint.weights import ADAPTER_FOLDER, MODEL_FOLDER
from maxent_grpo.training.loop import RunResult
from maxent_grpo.training.loop_parts import LoopParts
from maxent_grpo.training.metric_table import UNREPRODUCED
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.types.runtime import StepResources, TrainingLoopContext

T = TypeVar("T")

SMALL_COLORING = (
    "data.num_vertices=3",
    "data.num_hidden=2",
    "data.min_modes=1",
    "data.max_modes=9",
    "generation.max_completion_len=4",
)
SMALL_COUNTDOWN = (
    "data.max_number=6",
    "data.max_target=12",
    "data.min_modes=1",
    "generation.max_completion_len=8",
)
SMALL_MODEL = (
    "model.hidden_size=32",
    "model.num_heads=1",
    "model.num_layers=1",
    "model.intermediate_size=32",
    "model.warm_start.enabled=false",
)
SMALL_RUN = (
    *SMALL_MODEL,
    "data.num_train=12",
    "data.num_eval=4",
    "generation.num_generations=4",
    "optimization.prompts_per_step=4",
    "optimization.total_training_steps=2",
    "optimization.warmup_steps=0",
    "optimization.learning_rate=0.01",
    "optimization.lr_scheduler_type=constant_with_warmup",
    "evaluation.num_samples=8",
    "logging.report=false",
    "checkpoint.final_model=false",
    "logging.console=silent",
    "logging.completions_every=1",
    "run.device=cpu",
    "+reward.terms.spread=0.25",
    "+reward.functions.spread=support.graders:spread",
)
SMALL = (*SMALL_RUN, *SMALL_COLORING)
"""A run of well under a second in which untrained completions differ in reward and some are cut by the length limit."""


def small(extra: tuple[str, ...]) -> tuple[str, ...]:
    """The overrides of a small run of the task and the model that ``extra`` chooses."""
    if "data=table" in extra:
        return SMALL_RUN
    other = {"data=countdown", "experiment=tiny_countdown"} & set(extra)
    chosen = (*SMALL_RUN, *SMALL_COUNTDOWN) if other else SMALL
    other_model = any(item.startswith("model=") for item in extra)
    return tuple(item for item in chosen if not (other_model and item in SMALL_MODEL))


def only_reward(name: str) -> tuple[str, ...]:
    """Overrides that make a grader of ``support.graders`` the only term that counts."""
    return (
        "reward.terms.task=0",
        "reward.terms.spread=0",
        f"+reward.terms.{name}=1",
        f"+reward.functions.{name}=support.graders:{name}",
    )


def overrides(run_dir: Path, *extra: str) -> list[str]:
    """The overrides of a small run into ``run_dir``; ``extra`` comes last and wins."""
    return [*small(extra), f"run.dir={run_dir}", *extra]


@cache
def _composed(extra: tuple[str, ...]) -> RootConfig:
    return load_config([*small(extra), "run.dir=nowhere", *extra])


def configured(
    run_dir: Path, *extra: str, resume_from: Path | None = None, settings: Mapping[str, Any] | None = None
) -> RootConfig:
    """The checked configuration of a small run; what the overrides say is composed once.

    ``settings`` are set last, by dotted path, to values of their own type.
    """
    config = deepcopy(_composed(extra))
    resumed = None if resume_from is None else str(resume_from)
    for path, value in {"run.dir": str(run_dir), "checkpoint.resume_from": resumed, **(settings or {})}.items():
        *parents, name = path.split(".")
        setattr(reduce(getattr, parents, config), name, value)
    return check_object(config) if settings else check_values(config)  # settings may come as text


def train(run_dir: Path, *extra: str, resume_from: Path | None = None) -> RunResult:
    """Run from start to end."""
    return run_from_config(configured(run_dir, *extra, resume_from=resume_from))


def inside_run(config: RootConfig, body: Callable[[TrainingLoopContext, StepResources, LoopParts], T]) -> T:
    """Put a run together as always, and let ``body`` have its parts where the training loop would."""
    results: list[T] = []

    def instead(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts) -> RunResult:
        results.append(body(ctx, resources, parts))
        return RunResult(ctx.logging.run_dir, parts.state.global_step, {}, {})

    with patch.object(setup, "run_training", instead):
        run_from_config(config)
    return results[0]


def metric_lines(run_dir: Path) -> list[dict[str, float]]:
    """metrics.jsonl without what measures the machine rather than the run."""
    return [
        {name: value for name, value in line.items() if not name.startswith(UNREPRODUCED)}
        for line in _lines(run_dir / "metrics.jsonl")
    ]


def completion_lines(run_dir: Path) -> list[dict[str, Any]]:
    """completions.jsonl."""
    return _lines(run_dir / "completions.jsonl")


def evaluation_lines(run_dir: Path) -> list[dict[str, Any]]:
    """evaluations.jsonl."""
    return _lines(run_dir / "evaluations.jsonl")


def checkpoint_of(run_dir: Path, step: int | None = None) -> Path:
    """The checkpoint folder of a step, by default the latest."""
    return find_checkpoint(run_dir if step is None else run_dir / "checkpoints" / f"step_{step}")


def weights_of(checkpoint: Path) -> dict[str, Tensor]:
    """The model's weights in a checkpoint, or the adapter's of a run that trains one."""
    if (checkpoint / ADAPTER_FOLDER).is_dir():
        return safetensors.torch.load_file(checkpoint / ADAPTER_FOLDER / "adapter_model.safetensors")
    return safetensors.torch.load_file(checkpoint / MODEL_FOLDER / "model.safetensors")


def state_of(checkpoint: Path) -> SavedRunState:
    """Everything else in a checkpoint."""
    return load_run_state(checkpoint)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]

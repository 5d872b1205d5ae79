"""Whole runs in several processes, and what each of them holds of the weights and the optimiser."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from support.runs import checkpoint_of, configured, metric_lines
from torch.distributed.tensor import DTensor

from maxent_grpo.training import loop, setup, step
from maxent_grpo.training.optim import check_finite_loss
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.sharding import ShardedWeights

SPOILED_STEP = 2


def runs(folder: str, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """One run after another, each named, with its ``overrides`` and perhaps a checkpoint to ``resume_from``; what this process saw."""
    return {name: one_run(Path(folder) / name, **case) for name, case in cases.items()}


def one_run(folder: Path, overrides: list[str], resume_from: str | None = None) -> dict[str, Any]:
    config = configured(folder, *overrides, resume_from=None if resume_from is None else Path(resume_from))
    held: dict[str, int] = {"gathered": 0}
    release = ShardedWeights._release

    def counted(self: ShardedWeights) -> None:
        held["gathered"] += 1
        release(self)

    def watched(ctx: Any, resources: Any, parts: Any) -> Any:
        optimizer = ctx.optimization.handles.base_optimizer
        result = loop.run_training(ctx, resources, parts)
        held["weights"] = sum(_stored(parameter) for parameter in ctx.runtime.trained.parameters())
        held["plain"] = sum(parameter.untyped_storage().nbytes() for parameter in ctx.runtime.model.parameters())
        held["moments"] = sum(_stored(entry["exp_avg"]) for entry in optimizer.state.values())
        return result

    with patch.object(setup, "run_training", watched), patch.object(ShardedWeights, "_release", counted):
        result = run_from_config(config)
    lines = [line for line in metric_lines(result.run_dir) if "optim/gradient_norm" in line]
    return {
        "norms": [line["optim/gradient_norm"] for line in lines],
        "losses": [line["loss/total"] for line in lines],
        "last": result.metrics,
        "evaluations": [result.evaluations[step] for step in sorted(result.evaluations)],
        "checkpoint": str(checkpoint_of(result.run_dir)),
        "held": held,
    }


def spoiled_run(folder: str, overrides: list[str]) -> dict[str, Any]:
    """A run whose second step has a NaN in the loss of the last process's first slice."""
    with patch.object(step, "check_finite_loss", _Spoiled()):
        return one_run(Path(folder), overrides)


class _Spoiled:
    """Looks at losses as training does, once after making one NaN."""

    def __init__(self) -> None:
        self.is_done = False

    def __call__(self, loss: torch.Tensor, accelerator: Any, *, step: int, **more: Any) -> None:
        if step == SPOILED_STEP and not self.is_done:
            self.is_done = True
            if accelerator.process_index == accelerator.num_processes - 1:
                loss = loss * math.nan
        check_finite_loss(loss, accelerator, step=step, **more)


def _stored(value: torch.Tensor) -> int:
    """Bytes of a tensor in this process."""
    local = value.to_local() if isinstance(value, DTensor) else value
    return local.numel() * local.element_size()

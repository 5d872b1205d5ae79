"""Training runs whose record can be compared between one process and several: every line, gradient and completion of each step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from support.runs import configured, inside_run
from support.steps import FOR_FEW_ROWS, OPTIONS

from maxent_grpo.config.store import OPTIONS as STORE
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.loop import run_training
from maxent_grpo.training.loop_parts import LoopParts
from maxent_grpo.training.metric_table import UNREPRODUCED
from maxent_grpo.training.types.runtime import StepResources, TrainingLoopContext

CONTROLLERS = {name: node for group, name, node in STORE if group == "controller"}
DOUBLE = ("model.dtype=float64", "optimization.max_grad_norm=0", "optimization.adam_epsilon=1e-3")
"""In single precision the order of sums alone moves a loss by 1e-7, and with it after some steps a completion."""


@dataclass
class Trained:
    """What a run left behind, as plain values."""

    lines: list[dict[str, float]] = field(default_factory=list)
    completions: list[list[dict[str, Any]]] = field(default_factory=list)
    evaluations: list[list[dict[str, Any]]] = field(default_factory=list)
    gradients: list[dict[str, list[float]]] = field(default_factory=list)
    """Sum, sum of absolute values and first entries of each parameter's gradient, of each step that was taken."""
    own_completions: list[list[str]] = field(default_factory=list)
    """Row and tokens of each completion that this process trains on, by rollout."""


class Kept:
    """A writer that keeps what it is told."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained

    def start(self, total_steps: int, first_step: int) -> None: ...

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        measured = {name: float(value) for name, value in metrics.items() if not name.startswith(UNREPRODUCED)}
        self.trained.lines.append({"step": step, **measured})

    def write_completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        self.trained.completions.append([{"step": step, **record} for record in records])

    def write_evaluation(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.trained.evaluations.append([{"step": step, **row} for row in rows])

    def write_note(self, message: str) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def samplers_meet() -> Iterator[None]:
    """Samplers that meet those of the other processes at each call, as those do that share a vLLM server."""
    original = LocalGenerator.__call__

    def meeting(self: LocalGenerator, *arguments: Any, **named: Any) -> Any:
        if torch.distributed.is_initialized():
            met: list[Any] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(met, self._stream)
            assert met == [self._stream] * len(met), "processes ask their samplers equally often"
        return original(self, *arguments, **named)

    with patch.object(LocalGenerator, "__call__", meeting):
        yield


def trained(cases: Sequence[tuple[str, Sequence[str], Mapping[str, Any]]]) -> dict[str, Any]:
    """The record of a run of each case: its name, overrides, and settings by dotted path."""
    with tempfile.TemporaryDirectory() as folder, samplers_meet():
        return {
            name: asdict(_run(Path(folder) / os.environ.get("RANK", "0") / name, overrides, settings))
            for name, overrides, settings in cases
        }


def _run(run_dir: Path, overrides: Sequence[str], settings: Mapping[str, Any]) -> Trained:
    chosen: dict[str, Any] = {}
    for path, value in settings.items():
        chosen[path] = value
        if path == "scoring":  # what is set of it comes after it
            chosen["scoring"] = OPTIONS[value]()
            chosen |= {f"scoring.{name}": few for name, few in FOR_FEW_ROWS.get(value, {}).items()}
        if path == "controller":
            chosen["controller"] = CONTROLLERS[value]()
    kept = Trained()

    def body(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts) -> Trained:
        ctx.logging.writers.append(Kept(kept))
        model: Any = ctx.runtime.accelerator.unwrap_model(ctx.runtime.model)

        def keep_gradient(*_: Any) -> None:
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            kept.gradients.append(
                {
                    name: [float(grad.sum()), float(grad.abs().sum()), *grad.flatten()[:4].tolist()]
                    for name, grad in gradients.items()
                    if grad is not None
                }
            )

        ctx.optimization.handles.base_optimizer.register_step_pre_hook(keep_gradient)
        put = parts.buffer.put

        def keep_rollout(experience: Any) -> None:
            kept.own_completions.append([f"{r.row_id} {r.token_ids}" for r in experience.graded.records])
            put(experience)

        parts.buffer.put = keep_rollout  # type: ignore[method-assign]
        run_training(ctx, resources, parts)
        return kept

    return inside_run(configured(run_dir, *DOUBLE, *overrides, settings=chosen), body)

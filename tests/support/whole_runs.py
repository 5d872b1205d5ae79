"""Whole runs in processes that meet, and what each holds at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support.runs import configured

from maxent_grpo.errors import GenerationError
from maxent_grpo.launched import place
from maxent_grpo.models.weight_cache import state_digest
from maxent_grpo.training import setup
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.loop import RunResult
from maxent_grpo.training.loop_parts import LoopParts
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.types.runtime import StepResources, TrainingLoopContext


def held(run_dir: str, *overrides: str) -> dict[str, Any]:
    """The weights' digest after a run, how many writers this process had, and the directory that it knew."""
    seen: dict[str, Any] = {}
    original = setup.run_training

    def watched(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts) -> RunResult:
        result = original(ctx, resources, parts)
        seen["digest"] = state_digest(ctx.runtime.model.state_dict())
        seen["writers"], seen["run_dir"], seen["rank"] = (
            len(ctx.logging.writers), str(ctx.logging.run_dir), ctx.runtime.accelerator.process_index,
        )  # fmt: skip
        seen["controller"] = parts.controller.state_dict()
        return result

    with patch.object(setup, "run_training", watched):
        seen["step"] = run_from_config(configured(Path(run_dir), *overrides)).global_step
    return seen


def sampler_fails_on_one(run_dir: str, at_call: int, gives_up: bool, *overrides: str) -> str:
    """What a run ends with whose sampler fails in the second process alone, at one of its calls: it gives up, or reports no
    log-probabilities.
    """
    original, calls = LocalGenerator.__call__, 0

    def failing(self: LocalGenerator, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += self._stream == "train"
        fails = calls == at_call and place().rank == 1
        if fails and gives_up:
            raise GenerationError("the sampler is out of paper")
        texts, records = original(self, *arguments, **named)
        silent: list[Any] = [[replace(record, behaviour_logp=None) for record in group if record] for group in records]
        return texts, silent if fails else records

    with patch.object(LocalGenerator, "__call__", failing):
        try:
            run_from_config(
                configured(Path(run_dir), "optimization.total_training_steps=4", "evaluation.enabled=false", *overrides)
            )
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "ended well"

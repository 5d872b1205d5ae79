"""Puts the outer objective and the manager of `controller=meta` into the loop's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from maxent_grpo.config.controller import ControllerConfig
from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.errors import DataError
from maxent_grpo.training.control.base import Controller
from maxent_grpo.training.control.meta import MetaManager
from maxent_grpo.training.meta.dual import DualObjective
from maxent_grpo.training.meta.first_order import FirstOrderObjective
from maxent_grpo.training.meta.held_out import HeldOutRollouts
from maxent_grpo.training.scoring.policy import ScoringCounters
from maxent_grpo.training.types.choices import MetaMode
from maxent_grpo.training.types.runtime import (
    ControllerObjective,
    GenerationFn,
    StepResources,
    TrainingLoopContext,
)


def install_meta(
    config: ControllerConfig,
    ctx: TrainingLoopContext,
    resources: StepResources,
    controller: Controller,
    *,
    rows: Sequence[Mapping[str, Any]],
    generator: GenerationFn,
    seed: int,
) -> None:
    """Give the loop the objective and the manager; does nothing for any other controller.

    Args:
        config: the chosen controller.
        ctx: the job, whose settings receive both.
        resources: the method and the scorer of the step.
        controller: the run's controller, which is the manager.
        rows: rendered training rows.
        generator: a sampler with random numbers of its own.
        seed: of the choice of held-out rows.

    Raises:
        DataError: too few training rows to hold any out of a step.
    """
    if not isinstance(config, MetaControllerConfig):
        return
    assert isinstance(controller, MetaManager)
    objective: ControllerObjective = DualObjective(target_fraction=config.target_fraction, target_kl=config.target_kl)
    if config.mode is MetaMode.first_order:
        _require_rows(config, ctx, len(rows))
        assert resources.method is not None
        assert resources.scorer is not None
        scorer = replace(resources.scorer, entropy=None, entropy_carries_gradient=False, counters=ScoringCounters())
        objective = FirstOrderObjective(
            HeldOutRollouts(rows, generator, config.num_prompts, seed),
            scorer,
            listwise_scale=resources.method.listwise_scale,
            adapt_beta=config.adapt_beta,
            jacobian=config.optimizer_jacobian,
        )
    ctx.settings.controller_objective, ctx.settings.controller_meta_manager = objective, controller


def _require_rows(config: MetaControllerConfig, ctx: TrainingLoopContext, num_rows: int) -> None:
    used = ctx.optimization.schedule.prompts_per_step
    if num_rows < used + config.num_prompts:
        raise DataError(
            f"controller.num_prompts={config.num_prompts} held-out prompts beside a step's "
            f"optimization.prompts_per_step={used} need {used + config.num_prompts} training prompts, and there are {num_rows}: "
            f"use more data or smaller numbers"
        )

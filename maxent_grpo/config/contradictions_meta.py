"""Contradictions of `controller=meta` beyond those that every controller can have."""

from __future__ import annotations

from collections.abc import Iterator

from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.config.optimization import AdamWConfig
from maxent_grpo.config.root import RootConfig
from maxent_grpo.training.types.choices import AdvantageKind, GroupLoss, MetaMode

FIRST_ORDER_INTERVAL = 10
"""Fewest optimiser steps between two updates by meta-gradients of the reward [steps]."""

LEAST_TAU = 1e-8
"""Smallest temperature at which the weights have a derivative in it, as `objective.weights` has it."""


def meta_rules(config: RootConfig) -> Iterator[str]:
    """The sentence of every contradiction that `controller=meta` takes part in."""
    controller = config.controller
    if not isinstance(controller, MetaControllerConfig):
        return
    prompts = config.optimization.prompts_per_step
    if prompts < controller.min_groups:
        yield (
            f"controller.min_groups={controller.min_groups} exceeds optimization.prompts_per_step={prompts}: no step has that "
            f"many groups, so nothing would be adapted; use controller.min_groups={prompts} or less"
        )
    if controller.tau_min < LEAST_TAU:
        yield (
            f"controller.tau_min={controller.tau_min:g}: below {LEAST_TAU:g} the weights no longer depend on tau, and have no derivative in "
            f"it; use controller.tau_min={LEAST_TAU:g} or more"
        )
    if controller.adapt_beta and controller.beta_min == 0:
        yield (
            f"controller.beta_min={controller.beta_min} with controller.adapt_beta=true: beta moves in its logarithm, which has "
            f"no 0; use controller.beta_min above 0"
        )
    if controller.mode is MetaMode.first_order:
        yield from _first_order(config, controller)


def _first_order(config: RootConfig, controller: MetaControllerConfig) -> Iterator[str]:
    if controller.every_n_steps < FIRST_ORDER_INTERVAL:
        yield (
            f"controller.every_n_steps={controller.every_n_steps} with controller.mode=first_order: the reward of one rollout is "
            f"too noisy to follow that often; use controller.every_n_steps={FIRST_ORDER_INTERVAL} or more, or "
            f"controller.mode=analytic"
        )
    if not isinstance(config.optimization, AdamWConfig):
        yield (
            f"controller.mode=first_order differentiates the update of AdamW, and optimization is "
            f"{type(config.optimization).__name__}: use optimization=adamw or controller.mode=analytic"
        )
    if config.scoring.group_loss is not GroupLoss.cross_entropy and config.scoring.weighting.listwise_coef > 0:
        yield (
            f"controller.mode=first_order differentiates the listwise cross-entropy, and the listwise term is "
            f"scoring.group_loss={config.scoring.group_loss}: use scoring.group_loss=cross_entropy or controller.mode=analytic"
        )
    if config.scoring.advantage is AdvantageKind.soft:
        yield (
            "controller.mode=first_order differentiates the listwise cross-entropy, and scoring.advantage=soft depends on tau "
            "too: use another scoring.advantage with scoring.weighting.listwise_coef above 0, or controller.mode=analytic"
        )
    if config.scoring.clipping.use_clip_objective and config.scoring.advantage is AdvantageKind.none:
        yield (
            "controller.mode=first_order differentiates the listwise cross-entropy, and scoring.clipping.use_clip_objective=true "
            "adds a second term that depends on tau: use scoring.clipping.use_clip_objective=false or controller.mode=analytic"
        )


def meta_warnings(config: RootConfig) -> list[str]:
    """What is allowed of the controller but probably not meant."""
    controller, steps = config.controller, config.optimization.total_training_steps
    if isinstance(controller, MetaControllerConfig) and 0 < steps <= controller.every_n_steps:
        return [
            f"controller.every_n_steps={controller.every_n_steps} is not below optimization.total_training_steps={steps}: tau "
            f"stays as configured"
        ]
    return []

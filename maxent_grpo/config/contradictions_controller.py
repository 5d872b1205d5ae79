"""Contradictions between a controller and what it is to move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from maxent_grpo.config.controller import (
    BETA,
    KL_BETA,
    LEAVES_NO_ZERO,
    TAU,
    EffectiveSizeControllerConfig,
    EntropyControllerConfig,
    KlControllerConfig,
)
from maxent_grpo.config.resolve import chosen_options, uses_temperature
from maxent_grpo.config.root import RootConfig
from maxent_grpo.training.types.choices import KlLaw, ReferenceSource, TargetSchedule


def _unused(config: RootConfig) -> Iterator[str]:
    """A coefficient of the target weights, moved where the loss does not depend on it."""
    options, scoring = chosen_options(config), config.scoring
    if uses_temperature(scoring):
        return
    why = f"scoring.weighting.listwise_coef={scoring.weighting.listwise_coef}"
    if scoring.weighting.listwise_coef > 0:
        why = f"scoring.group_loss={scoring.group_loss}"
    for path in config.controller.adapted():
        if path in (TAU, BETA):
            yield (
                f"controller={options['controller']} adapts {path}, which scoring={options['scoring']} with {why} does not "
                f"use: use scoring=maxent or controller=fixed"
            )


def _no_reference(config: RootConfig) -> Iterator[str]:
    if config.scoring.reference_logprobs_source is not ReferenceSource.none:
        return
    for path in config.controller.adapted():
        if path == KL_BETA or (path == BETA and uses_temperature(config.scoring)):
            yield (
                f"controller={chosen_options(config)['controller']} adapts {path} by the divergence from a reference, which "
                f"scoring.reference_logprobs_source=none leaves out: use scoring.reference_logprobs_source=model or "
                f"controller=fixed"
            )


def _stuck_at_zero(config: RootConfig) -> Iterator[str]:
    controller = config.controller
    if not isinstance(controller, KlControllerConfig) or controller.law not in LEAVES_NO_ZERO:
        return
    [path] = controller.adapted()
    if _coefficient(config, path) == 0:
        yield (
            f"controller=kl adapts {path}, which is 0 and can never grow under controller.law={controller.law}: set {path} "
            f"> 0 or controller.law=additive"
        )
    if controller.beta_min == 0:
        yield (
            f"controller.beta_min={controller.beta_min} lets {path} fall to 0, which it can never leave under "
            f"controller.law={controller.law}: use controller.beta_min=null or controller.law=additive"
        )


def _bounds(config: RootConfig) -> Iterator[str]:
    """Bounds that leave no room, or that the configured coefficient lies outside of."""
    for path, (low, high) in config.controller.bounds().items():
        start, name = _coefficient(config, path), "tau" if path == TAU else "beta"
        if low >= high:
            yield (
                f"controller.{name}_min={low} is not below controller.{name}_max={high}: {path} could not move; use "
                f"controller=fixed to keep it"
            )
        elif not low <= start <= high and not (start == 0 and _multiplies(config)):
            nearest = low if start < low else high
            yield (
                f"{path}={start} lies outside controller.{name}_min={low} and controller.{name}_max={high}: a controller "
                f"starts inside its bounds; use {path}={nearest} or wider bounds"
            )


def _exponent(config: RootConfig) -> Iterator[str]:
    """A listwise beta that may fall to 0 where tau is 0 already."""
    weighting = config.scoring.weighting
    low, _ = config.controller.bounds().get(BETA, (1.0, 1.0))
    if low == weighting.tau == 0 and TAU not in config.controller.adapted():
        yield (
            f"controller.beta_min={low} with scoring.weighting.tau={weighting.tau}: tau + beta could fall to 0, where the "
            f"weight exponent 1/(tau+beta) is undefined; use controller.beta_min or scoring.weighting.tau above 0"
        )


def _schedule(config: RootConfig) -> Iterator[str]:
    controller = config.controller
    if not isinstance(controller, EntropyControllerConfig):
        return
    schedule = controller.schedule
    if schedule.kind is TargetSchedule.peak and schedule.peak_step >= schedule.horizon:
        yield (
            f"controller.schedule.peak_step={schedule.peak_step} is not before "
            f"controller.schedule.horizon={schedule.horizon}, where the schedule ends: use "
            f"controller.schedule.peak_step={schedule.horizon - 1} or less, or controller.schedule.kind=linear"
        )


def _target_size(config: RootConfig) -> Iterator[str]:
    controller, size = config.controller, config.generation.num_generations
    if isinstance(controller, EffectiveSizeControllerConfig) and controller.target_size >= size > 1:
        yield (
            f"controller.target_size={controller.target_size} is not below generation.num_generations={size}: only an "
            f"infinite tau makes all completions count alike; use a smaller controller.target_size or larger groups"
        )


def _gains(config: RootConfig) -> Iterator[str]:
    controller = config.controller
    if (
        isinstance(controller, KlControllerConfig)
        and controller.law is KlLaw.pi
        and controller.gain == controller.integral_gain == 0
    ):
        yield (
            f"controller.gain={controller.gain} with controller.integral_gain={controller.integral_gain}: "
            f"controller.law=pi would move nothing; set one of them above 0 or controller=fixed"
        )


def controller_warnings(config: RootConfig) -> list[str]:
    """What is allowed of a controller but probably not meant."""
    controller, steps = config.controller, config.optimization.total_training_steps
    if isinstance(controller, EntropyControllerConfig) and 0 < steps <= controller.warmup_steps:
        return [
            f"controller.warmup_steps={controller.warmup_steps} is not below optimization.total_training_steps={steps}: tau "
            f"stays as configured"
        ]
    return []


def _coefficient(config: RootConfig, path: str) -> float:
    owner: Any = config
    return reduce(getattr, path.split("."), owner)


def _multiplies(config: RootConfig) -> bool:
    return isinstance(config.controller, KlControllerConfig) and config.controller.law in LEAVES_NO_ZERO


CONTROLLER_RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (
    _unused,
    _no_reference,
    _stuck_at_zero,
    _bounds,
    _exponent,
    _schedule,
    _target_size,
    _gains,
)
"""Every rule of this file, in the order in which their sentences are printed."""

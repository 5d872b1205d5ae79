"""`controller=meta`: the manager that applies gradients of an outer objective to log tau and log beta, behind guard rails."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.training.control.base import (
    ControllerState,
    StatefulController,
    StepMeasurement,
    known,
)
from maxent_grpo.training.types.choices import MetaOptimizer
from maxent_grpo.training.types.runtime import ControllerGradients
from maxent_grpo.training.types.weighting import ControllerValues

ADAM_BETA1 = 0.9
ADAM_BETA2 = 0.999
ADAM_EPSILON = 1e-12
"""Far below any gradient that is not rounding: meta-gradients carry the policy's learning rate as a factor."""


@dataclass
class MetaState(ControllerState):
    """Coefficients, the moments of Adam in log tau and log beta, and what became of the updates that were due."""

    tau_moment: float = 0.0
    tau_square: float = 0.0
    beta_moment: float = 0.0
    beta_square: float = 0.0
    num_applied: int = 0
    """Updates taken."""
    num_skipped: int = 0
    """Due updates left out: too few informative groups, nothing to learn from, or a gradient that is not finite."""
    num_limited: int = 0
    """Updates in which max_log_change acted."""
    num_saturated: int = 0
    """Updates in which a bound acted."""


class MetaManager(StatefulController[MetaControllerConfig, MetaState]):
    """Descends an outer objective M(tau, beta) in log tau and log beta, every ``every_n_steps`` optimiser steps.

    dM/dlog tau = tau dM/dtau; the pair of gradients is clipped to ``max_gradient``, the change of each logarithm to
    ``max_log_change``, and the result is projected to its bounds. Nothing moves after a step with fewer than ``min_groups``
    informative groups.
    """

    kind = "meta"
    state_type = MetaState

    def __init__(self, config: MetaControllerConfig, values: ControllerValues) -> None:
        super().__init__(config, values)
        self._num_informative = 0
        self._last: dict[str, float] = {}

    def update(self, measured: StepMeasurement) -> None:
        """Count the step and its informative groups; gradients come separately, through ``apply``."""
        self._state.num_updates += 1
        self._num_informative = measured.num_informative
        self._last = {}

    def due(self, step: int) -> bool:
        """Whether an update belongs to optimiser step ``step``, the first being 1."""
        return step % self._config.every_n_steps == 0

    @property
    def can_learn(self) -> bool:
        """Whether the step just counted has enough informative groups."""
        return self._num_informative >= self._config.min_groups

    def apply(self, gradients: ControllerGradients | None, notes: Mapping[str, float] | None = None) -> None:
        """Take the update that is due, or leave it out and count it where there is no finite gradient.

        Args:
            gradients: of the outer objective, which is minimised; None where there was nothing to learn from.
            notes: what the objective measured, by names of the table of metrics.
        """
        self._last = dict(notes or {})
        if gradients is None or not known(gradients.tau_grad) or not known(gradients.beta_grad):
            self._state.num_skipped += 1
            return
        self._last |= {"controller/tau_gradient": gradients.tau_grad, "controller/beta_gradient": gradients.beta_grad}
        self._descend(gradients)

    def metrics(self) -> dict[str, float]:
        """Gradients where an update was due; updates so far that were left out, held back, or stopped by a bound."""
        state = self._state
        counters = {"skipped": state.num_skipped, "limited": state.num_limited, "saturated": state.num_saturated}
        return self._last | {f"controller/{name}": float(count) for name, count in counters.items()}

    def _descend(self, gradients: ControllerGradients) -> None:
        state, config = self._state, self._config
        tau_slope = state.tau * gradients.tau_grad
        beta_slope = state.beta * gradients.beta_grad if config.adapt_beta else 0.0
        norm = math.hypot(tau_slope, beta_slope)
        factor = config.max_gradient / norm if norm > config.max_gradient else 1.0
        tau_slope, beta_slope = factor * tau_slope, factor * beta_slope
        state.num_applied += 1
        state.tau_moment, state.tau_square = _moments(state.tau_moment, state.tau_square, tau_slope)
        state.beta_moment, state.beta_square = _moments(state.beta_moment, state.beta_square, beta_slope)
        if config.optimizer is MetaOptimizer.adam:
            tau_slope = _adam(state.tau_moment, state.tau_square, state.num_applied)
            beta_slope = _adam(state.beta_moment, state.beta_square, state.num_applied)
        tau = self._moved(state.tau, tau_slope, config.tau_min, config.tau_max)
        moves = [tau]
        if config.adapt_beta:
            moves.append(self._moved(state.beta, beta_slope, config.beta_min, config.beta_max))
            state.beta = moves[1].value
        state.tau = tau.value
        state.num_limited += any(move.limited for move in moves)
        state.num_saturated += any(move.saturated for move in moves)

    def _moved(self, value: float, slope: float, low: float, high: float) -> Move:
        """value * exp(-learning_rate * slope), the exponent limited and the result projected to [low, high]."""
        wanted = -self._config.learning_rate * slope
        limit = self._config.max_log_change
        change = min(max(wanted, -limit), limit)
        free = value * math.exp(change)
        projected = min(max(free, low), high)
        return Move(projected, change != wanted, projected != free)


class Move(NamedTuple):
    """A coefficient after an update, and what acted on the way."""

    value: float
    limited: bool
    saturated: bool


def _moments(moment: float, square: float, slope: float) -> tuple[float, float]:
    return ADAM_BETA1 * moment + (1 - ADAM_BETA1) * slope, ADAM_BETA2 * square + (1 - ADAM_BETA2) * slope * slope


def _adam(moment: float, square: float, count: int) -> float:
    """m_hat / (sqrt(v_hat) + eps), both moments corrected for their start at 0."""
    corrected = moment / (1 - ADAM_BETA1**count)
    return corrected / (math.sqrt(square / (1 - ADAM_BETA2**count)) + ADAM_EPSILON)

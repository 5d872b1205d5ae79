"""`controller=kl`: a coefficient moves step by step until its divergence from the reference has the wanted size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from maxent_grpo.config.controller import KlControllerConfig
from maxent_grpo.objective.control import (
    additive_step,
    bounded,
    halved_or_doubled,
    multiplicative_step,
    proportional_integral,
)
from maxent_grpo.training.control.base import (
    ControllerState,
    InformativeGroups,
    StepMeasurement,
    dump_state,
    known,
    parse_state,
    require_inside,
)
from maxent_grpo.training.types.choices import KlLaw, KlTarget
from maxent_grpo.training.types.weighting import ControllerValues

KIND = "kl"


@dataclass
class KlState(ControllerState):
    """Coefficients, what the `pi` law remembers, and counters."""

    start: float = 0.0
    """The coefficient that the `pi` law counts from."""
    integral: float = 0.0
    """Sum of the relative errors, of the `pi` law."""
    num_skipped: int = 0
    """Steps without a measurement."""
    num_saturated: int = 0
    """Steps in which a bound stopped the coefficient."""


class KlController:
    """Moves `kl_beta` by the token KL, or the listwise `beta` by KL(w || pi_ref) over the group: up above the target."""

    def __init__(self, config: KlControllerConfig, values: ControllerValues) -> None:
        self._config = config
        self._state = KlState(values.tau, values.beta, values.kl_beta)
        self._state.start = self._coefficient
        self._last: dict[str, float] = {}

    @property
    def values(self) -> ControllerValues:
        """The coefficients in force."""
        return self._state.values

    def prepare(self, groups: Callable[[], InformativeGroups]) -> None:
        """The laws look at measurements only."""

    def update(self, measured: StepMeasurement) -> None:
        """One move of the coefficient; a step without a finite measurement moves nothing and is counted."""
        state, config = self._state, self._config
        state.num_updates += 1
        self._last = {}
        divergence = measured.token_kl if config.target is KlTarget.kl_beta else measured.group_kl
        if divergence is None or not known(divergence):
            state.num_skipped += 1
            return
        self._last = {"measured": divergence}
        value, saturated = self._moved(divergence)
        state.num_saturated += saturated
        if config.target is KlTarget.kl_beta:
            state.kl_beta = value
        else:
            state.beta = value

    def metrics(self) -> dict[str, float]:
        """The divergence and its target [nats]; how often there was none, and how often a bound held the coefficient."""
        state = self._state
        figures = {"target": self._config.target_kl, "skipped": state.num_skipped, "saturated": state.num_saturated}
        return {f"controller/{name}": float(value) for name, value in (self._last | figures).items()}

    def state_dict(self) -> dict[str, Any]:
        """Coefficients, integral and counters."""
        return dump_state(KIND, self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue another KL controller: its coefficients and its integral."""
        loaded = parse_state(KIND, KlState, state)
        require_inside(self._config, loaded.values)
        self._state = loaded

    @property
    def _coefficient(self) -> float:
        return self._state.kl_beta if self._config.target is KlTarget.kl_beta else self._state.beta

    def _moved(self, divergence: float) -> tuple[float, bool]:
        """The next coefficient by the configured law, and whether a bound stopped it."""
        state, config, now = self._state, self._config, self._coefficient
        [(low, high)] = config.bounds().values()
        if config.law is KlLaw.pi:
            value, saturated, state.integral = proportional_integral(
                state.start,
                divergence,
                config.target_kl,
                state.integral,
                gain=config.gain,
                integral_gain=config.integral_gain,
                low=low,
                high=high,
            )
            return value, saturated
        if config.law is KlLaw.multiplicative:
            moved = multiplicative_step(now, divergence, config.target_kl, clip=config.clip, horizon=config.horizon)
        elif config.law is KlLaw.halving:
            moved = halved_or_doubled(now, divergence, config.target_kl)
        else:
            moved = additive_step(now, divergence, config.target_kl, learning_rate=config.learning_rate)
        return bounded(moved, low, high)

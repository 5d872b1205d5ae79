"""`controller=kl`: a coefficient moves step by step until its divergence from the reference has the wanted size."""

from __future__ import annotations

from dataclasses import dataclass

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
    StatefulController,
    StepMeasurement,
    known,
)
from maxent_grpo.training.types.choices import KlLaw, KlTarget
from maxent_grpo.training.types.weighting import ControllerValues


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


class KlController(StatefulController[KlControllerConfig, KlState]):
    """Moves `kl_beta` by the token KL, or the listwise `beta` by KL(w || pi_ref) over the group: up above the target."""

    kind = "kl"
    state_type = KlState

    def __init__(self, config: KlControllerConfig, values: ControllerValues) -> None:
        super().__init__(config, values)
        self._state.start = self._coefficient
        self._last: dict[str, float] = {}

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

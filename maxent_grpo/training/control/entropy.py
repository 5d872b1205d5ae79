"""`controller=entropy`: tau moves step by step until the target weights have the wanted entropy."""

from __future__ import annotations

from dataclasses import dataclass

from maxent_grpo.config.controller import EntropyControllerConfig
from maxent_grpo.objective.control import linear_target, peak_target, smoothed, temperature_step
from maxent_grpo.training.control.base import (
    ControllerState,
    StatefulController,
    StepMeasurement,
    known,
)
from maxent_grpo.training.types.choices import TargetSchedule
from maxent_grpo.training.types.entropy import WeightEntropy
from maxent_grpo.training.types.weighting import ControllerValues


@dataclass
class EntropyState(ControllerState):
    """Coefficients, smoothed entropy and counters."""

    smoothed: float | None = None
    """Exponential average of the measured entropy [nats]; None before the first measurement."""
    num_skipped: int = 0
    """Steps without a measurement."""
    num_saturated: int = 0
    """Steps in which a bound stopped tau."""


class EntropyController(StatefulController[EntropyControllerConfig, EntropyState]):
    """Moves log tau in proportion to target minus smoothed entropy, from the step after the warm-up on."""

    kind = "entropy"
    state_type = EntropyState

    def __init__(self, config: EntropyControllerConfig, values: ControllerValues) -> None:
        super().__init__(config, values)
        self._last: dict[str, float] = {}

    def update(self, measured: StepMeasurement) -> None:
        """One move of tau; a step without a finite measurement moves nothing and is counted."""
        state, config = self._state, self._config
        step, state.num_updates = state.num_updates, state.num_updates + 1
        self._last = {}
        entropy, lowest, highest = (
            measured.weight_entropy,
            measured.lowest_weight_entropy,
            measured.highest_weight_entropy,
        )
        if entropy is None or lowest is None or highest is None:
            state.num_skipped += 1
            return
        target = target_entropy(target_fraction(config, step), lowest, highest)
        if not known(entropy.nats) or not known(target.nats):
            state.num_skipped += 1
            return
        state.smoothed = smoothed(state.smoothed, entropy.nats, config.ema)
        self._last = {"measured": entropy.nats, "smoothed": state.smoothed, "target": target.nats}
        if step < config.warmup_steps:
            return
        moved = temperature_step(
            state.tau,
            state.smoothed,
            target.nats,
            learning_rate=config.learning_rate,
            low=config.tau_min,
            high=config.tau_max,
        )
        state.tau = moved.value
        state.num_saturated += moved.saturated

    def metrics(self) -> dict[str, float]:
        """Entropy, its average and its target [nats]; how often there was none, and how often a bound held tau."""
        counters = {"skipped": self._state.num_skipped, "saturated": self._state.num_saturated}
        return {f"controller/{name}": float(value) for name, value in (self._last | counters).items()}


def target_fraction(config: EntropyControllerConfig, step: int) -> float:
    """The target fraction at an optimiser step, the first one being 0."""
    schedule, start = config.schedule, config.target_fraction
    if schedule.kind is TargetSchedule.linear:
        return linear_target(step, start=start, final=schedule.final, horizon=schedule.horizon)
    if schedule.kind is TargetSchedule.peak:
        return peak_target(
            step,
            start=start,
            peak=schedule.peak,
            peak_step=schedule.peak_step,
            final=schedule.final,
            horizon=schedule.horizon,
        )
    return start


def target_entropy(fraction: float, lowest: WeightEntropy, highest: WeightEntropy) -> WeightEntropy:
    """H* = low + fraction (high - low): a share of what tau can reach, so that no target is out of its reach.

    The share taken of the means is the mean of the shares: H*_x = log c_x + fraction (log n_x - log c_x) for a group of
    n_x completions with c_x best ones, beta = 0.
    """
    return WeightEntropy(lowest.nats + fraction * (highest.nats - lowest.nats))

"""`controller=effective_size`: tau is solved for each step's groups, so it needs no tuning and no history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from maxent_grpo.config.controller import EffectiveSizeControllerConfig
from maxent_grpo.objective.control import solve_increasing
from maxent_grpo.objective.weights import weight_entropy
from maxent_grpo.training.control.base import (
    ControllerState,
    InformativeGroups,
    StatefulController,
    StepMeasurement,
    known,
)
from maxent_grpo.training.types.weighting import ControllerValues


@dataclass
class EffectiveSizeState(ControllerState):
    """Coefficients and counters."""

    num_skipped: int = 0
    """Steps without an informative group, which keep the tau of the step before."""
    num_infeasible: int = 0
    """Steps whose groups cannot have the target size at any tau."""
    num_saturated: int = 0
    """Steps in which a bound of tau was nearest to the target size."""


class EffectiveSizeController(StatefulController[EffectiveSizeControllerConfig, EffectiveSizeState]):
    """Sets tau so that the mean of exp(H(w)) over the step's informative groups is the target size.

    exp(H(w)) does not decrease in tau, so bisection finds it. The same groups give the same tau, in every pass over a
    rollout and on every process.
    """

    kind = "effective_size"
    state_type = EffectiveSizeState

    def __init__(self, config: EffectiveSizeControllerConfig, values: ControllerValues) -> None:
        super().__init__(config, values)
        self._measured: float | None = None

    def prepare(self, groups: Callable[[], InformativeGroups]) -> None:
        """Solve tau; a size out of reach gives the bound nearest to it and is counted."""
        state, config, informative = self._state, self._config, groups()
        self._measured = None
        if len(informative) == 0:
            state.num_skipped += 1
            return
        size = mean_effective_size(informative, state.beta)
        lowest, highest = size(0.0), float(informative.valid.sum(dim=-1).double().mean())
        if not known(lowest) or not known(size(config.tau_min)):
            state.num_skipped += 1
            return
        solved = solve_increasing(size, config.target_size, low=config.tau_min, high=config.tau_max)
        state.tau = solved.argument
        state.num_infeasible += not lowest <= config.target_size <= highest
        state.num_saturated += solved.saturated
        self._measured = size(state.tau)

    def update(self, measured: StepMeasurement) -> None:
        """Counts; the next step is solved from its own groups."""
        self._state.num_updates += 1

    def metrics(self) -> dict[str, float]:
        """Effective size with the tau found, the target size [completions], and the counters."""
        state = self._state
        figures: dict[str, float] = {
            "target": self._config.target_size,
            "skipped": state.num_skipped,
            "infeasible": state.num_infeasible,
            "saturated": state.num_saturated,
        }
        if self._measured is not None:
            figures["measured"] = self._measured
        return {f"controller/{name}": float(value) for name, value in figures.items()}


def mean_effective_size(groups: InformativeGroups, beta: float) -> Callable[[float], float]:
    """The function tau -> mean over groups of exp(H(w)), the effective number of completions."""

    def size(tau: float) -> float:
        return float(weight_entropy(groups.log_weights(tau=tau, beta=beta)).exp().mean())

    return size

"""`controller=fixed`: nothing is adapted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from maxent_grpo.training.control.base import (
    ControllerState,
    InformativeGroups,
    StepMeasurement,
    dump_state,
    parse_state,
)
from maxent_grpo.training.types.weighting import ControllerValues

KIND = "fixed"


class FixedController:
    """Keeps the coefficients as configured and counts the updates."""

    def __init__(self, values: ControllerValues) -> None:
        self._state = ControllerState(values.tau, values.beta, values.kl_beta)

    @property
    def values(self) -> ControllerValues:
        """The configured coefficients."""
        return self._state.values

    def prepare(self, groups: Callable[[], InformativeGroups]) -> None:
        """Nothing depends on the groups."""

    def update(self, measured: StepMeasurement) -> None:
        """Counts; measurements change nothing."""
        self._state.num_updates += 1

    def metrics(self) -> dict[str, float]:
        """Nothing beyond the coefficients, which every step reports."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Kind, version, coefficients and number of updates."""
        return dump_state(KIND, self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over coefficients and counter of another fixed controller."""
        self._state = parse_state(KIND, ControllerState, state)

"""`controller=fixed`: nothing is adapted."""

from __future__ import annotations

from maxent_grpo.config.controller import ControllerConfig
from maxent_grpo.training.control.base import ControllerState, StatefulController, StepMeasurement


class FixedController(StatefulController[ControllerConfig, ControllerState]):
    """Keeps the coefficients as configured and counts the updates."""

    kind = "fixed"
    state_type = ControllerState

    def update(self, measured: StepMeasurement) -> None:
        """Counts; measurements change nothing."""
        self._state.num_updates += 1

    def metrics(self) -> dict[str, float]:
        """Nothing beyond the coefficients, which every step reports."""
        return {}

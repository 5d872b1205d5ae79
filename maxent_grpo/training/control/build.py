"""From the configured controller to the object that adapts the coefficients."""

from __future__ import annotations

from maxent_grpo.config.controller import ControllerConfig
from maxent_grpo.training.control.base import Controller, initial_values
from maxent_grpo.training.control.fixed import FixedController
from maxent_grpo.training.types.runtime import ScoringSettings


def build_controller(config: ControllerConfig, scoring: ScoringSettings) -> Controller:
    """The controller that ``config`` chooses, starting from the coefficients of ``scoring``."""
    return FixedController(initial_values(scoring))

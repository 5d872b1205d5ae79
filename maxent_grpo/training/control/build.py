"""From the configured controller to the object that adapts the coefficients."""

from __future__ import annotations

from maxent_grpo.config.controller import (
    ControllerConfig,
    EffectiveSizeControllerConfig,
    EntropyControllerConfig,
    FixedControllerConfig,
    KlControllerConfig,
)
from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.training.control.base import Controller, initial_values
from maxent_grpo.training.control.effective_size import EffectiveSizeController
from maxent_grpo.training.control.entropy import EntropyController
from maxent_grpo.training.control.fixed import FixedController
from maxent_grpo.training.control.kl import KlController
from maxent_grpo.training.control.meta import MetaManager
from maxent_grpo.training.types.runtime import ScoringSettings


def build_controller(config: ControllerConfig, scoring: ScoringSettings) -> Controller:
    """The controller that ``config`` chooses, starting from the coefficients of ``scoring``."""
    values = initial_values(scoring)
    match config:
        case EntropyControllerConfig():
            return EntropyController(config, values)
        case EffectiveSizeControllerConfig():
            return EffectiveSizeController(config, values)
        case KlControllerConfig():
            return KlController(config, values)
        case MetaControllerConfig():
            return MetaManager(config, values)
        case FixedControllerConfig():
            return FixedController(config, values)
        case _:
            raise TypeError(f"no controller is built from a {type(config).__name__}")

"""`controller`: what adapts tau and beta during training."""

from dataclasses import dataclass, field

from maxent_grpo.training.types.runtime import ControllerPaths


@dataclass(slots=True)
class ControllerConfig:
    """Fields that every controller has."""

    paths: ControllerPaths = field(default_factory=ControllerPaths)


@dataclass(slots=True)
class FixedControllerConfig(ControllerConfig):
    """tau, beta and the KL coefficient stay as configured."""

"""What is to be reached, in one table. A ratio is always what the peer takes over what we take: more is better."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Quantity(StrEnum):
    """What of both sides is compared."""

    time = "time"
    """CPU seconds for the same work."""
    memory = "memory"
    """Peak resident memory above that after imports and loading."""
    peak = "peak"
    """Peak resident memory altogether."""


@dataclass(frozen=True)
class Target:
    """Peer / ours of one quantity of one measurement is to be at least a number."""

    measurement: str
    peer: str
    quantity: Quantity
    at_least: float

    @property
    def key(self) -> str:
        """Its name in results."""
        return f"{self.measurement}:{self.peer}:{self.quantity}"


TIME, MEMORY, PEAK = Quantity.time, Quantity.memory, Quantity.peak

TARGETS: tuple[Target, ...] = (
    Target("step-p32-v2048", "trl", TIME, 1.5),
    Target("step-p512-v2048", "trl", TIME, 3.0),
    Target("step-p1024-v2048", "trl", TIME, 4.0),
    Target("step-p512-v32000", "trl", TIME, 6.0),
    Target("step-p512-v32000", "trl", MEMORY, 4.0),
    Target("step-smollm2", "trl", TIME, 3.0),
    Target("step-smollm2", "trl", PEAK, 3.0),
    Target("head-quarter", "trl", TIME, 6.0),
    Target("head-quarter", "trl", MEMORY, 1 / 0.4),
    Target("head-all", "full", TIME, 1 / 1.1),
    Target("head-all", "full", MEMORY, 4.0),
    Target("sampling-p90", "hf", TIME, 2.0),
    Target("sampling-p512", "hf", TIME, 4.5),
    Target("sampling-p90", "vllm", TIME, 1.1),
    Target("scoring-2048", "body", TIME, 0.9),
)
"""Scoring's ratio compares shares of the matmul peak: seconds of an operation of the bare body over those of one of ours."""


def targets_of(measurement: str) -> list[Target]:
    """The targets of one measurement."""
    return [target for target in TARGETS if target.measurement == measurement]

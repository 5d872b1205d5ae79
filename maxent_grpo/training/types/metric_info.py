"""What the table of metrics says of each. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricInfo:
    """Meaning and unit of a metric, or of a family of metrics."""

    meaning: str
    unit: str = "1"
    when: str = ""
    """What makes it appear on a line; empty where every line of its group has it."""


@dataclass(frozen=True)
class MetricGroup:
    """What the metrics under one prefix have in common."""

    about: str
    source: str
    """The function that measures them, as `module.name` below `maxent_grpo`."""
    axis: str = "every optimiser step"
    """Which lines of metrics.jsonl have them."""

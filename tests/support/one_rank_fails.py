"""Reward functions that behave otherwise in one process of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence

from maxent_grpo.launched import place


def raises(completions: Sequence[str]) -> list[float]:
    """Raises in the second process."""
    if place().rank == 1:
        raise ValueError("the grader is out of chalk")
    return [0.5 for _ in completions]


def raises_and_holds(completions: Sequence[str]) -> list[float]:
    """Raises in the second process, and does not come back in the first."""
    if place().is_main:
        time.sleep(3600)
    return raises(completions)


def takes_its_time(completions: Sequence[str]) -> list[float]:
    """So that a run can be met while it goes on."""
    time.sleep(0.5)
    return [len(set(text)) / 4 for text in completions]

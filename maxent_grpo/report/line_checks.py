"""What a line of a run's record may hold, so that whoever reads it need not ask: numbers where numbers are meant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LARGEST = 2**53
"""Largest whole number that is a number of steps, samples or tokens: above it not every one is a number of a chart."""

Line = Mapping[str, Any]


def is_number(value: object) -> bool:
    """Whether a value is a finite number, and not true or false."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_count(value: object) -> bool:
    """Whether a value counts something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def wrong_in_metrics(line: Line) -> Iterator[str]:
    """The metrics that are no finite numbers."""
    for name, value in line.items():
        if name != "step" and not is_number(value):
            yield f"{name} is not a finite number"


def wrong_in_completion(line: Line) -> Iterator[str]:
    """The numbers of a recorded completion that are none; each may be null."""
    for name in ("utility", "advantage", "weight"):
        value = line.get(name)
        if value is not None and not (is_number(value) and (name != "weight" or value >= 0)):
            yield f"{name} is not a number that it can be"
    rewards = line.get("rewards")
    if isinstance(rewards, Mapping) and not all(value is None or is_number(value) for value in rewards.values()):
        yield "rewards are not numbers"
    if isinstance(line.get("mode"), list | dict):
        yield "mode is not a text"


def wrong_in_evaluation(line: Line) -> Iterator[str]:
    """The counts of a held-out row that are none."""
    for name in ("num_samples", "num_right", "num_modes"):
        value = line.get(name, 0)
        if not is_count(value) and (value is not None or name != "num_modes"):
            yield f"{name} is not a count"
    counts = line.get("mode_counts", {})
    if not isinstance(counts, Mapping) or not all(is_count(count) for count in counts.values()):
        yield "mode_counts are not counts by mode"


CHECKS: dict[str, Callable[[Line], Iterator[str]]] = {
    "metrics.jsonl": wrong_in_metrics,
    "completions.jsonl": wrong_in_completion,
    "evaluations.jsonl": wrong_in_evaluation,
}


def wrong_in(file: str, line: Line) -> str | None:
    """The first thing that a line of a record cannot hold, in words; None for a good line, and for any other file.

    A line without a step is no record, which is for the reader of the file to say.
    """
    if file not in CHECKS or "step" not in line:
        return None
    step = line["step"]
    if isinstance(step, int) and not is_count(step):
        return "step is not a number of steps"
    return next(CHECKS[file](line), None)

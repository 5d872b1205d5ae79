"""Series made small enough to draw: equal stretches of steps instead of single steps where there are too many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_POINTS = 300
"""Most points of a drawn line; about one for each pixel of a chart."""

Floats = NDArray[np.float64]


def smoothed(values: Sequence[float]) -> Floats:
    """Centred moving average over about a twenty-fifth of the series; short series stay as they are."""
    array = np.asarray(values, dtype=np.float64)
    half = len(array) // 50
    if half == 0:
        return array
    totals = np.concatenate([[0.0], np.cumsum(array)])
    index = np.arange(len(array))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(array))
    return (totals[high] - totals[low]) / (high - low)


@dataclass(frozen=True, slots=True)
class DrawnSeries:
    """A line and the range that its raw values span around it; both ends of the range are the value where nothing was merged."""

    steps: Floats
    middle: Floats
    low: Floats
    high: Floats
    is_merged: bool
    """Whether a point stands for several steps."""


def stretches(num_values: int, most: int = MAX_POINTS) -> NDArray[np.intp]:
    """First index of each of at most ``most`` stretches of equal length, to within one."""
    count = min(num_values, most)
    return np.arange(count, dtype=np.intp) * num_values // max(count, 1)


def means(values: Floats, firsts: NDArray[np.intp]) -> Floats:
    """Mean of each stretch."""
    lengths = np.diff(np.append(firsts, len(values)))
    return np.add.reduceat(values, firsts) / lengths


def drawn_series(steps: Sequence[int], values: Sequence[float], *, is_noisy: bool) -> DrawnSeries:
    """The line that stands for a recorded series, which has at least one value.

    A noisy series is drawn as its moving average; a long one through the mean step and value of each stretch.
    """
    raw = np.asarray(values, dtype=np.float64)
    line = smoothed(values) if is_noisy else raw
    firsts = stretches(len(raw))
    places = np.asarray(steps, dtype=np.float64)
    if len(firsts) == len(raw):
        return DrawnSeries(places, line, raw, raw, is_merged=False)
    merged = means(places, firsts)
    merged[0], merged[-1] = places[0], places[-1]  # the axis ends where the run does
    return DrawnSeries(
        steps=merged,
        middle=means(line, firsts),
        low=np.minimum.reduceat(raw, firsts),
        high=np.maximum.reduceat(raw, firsts),
        is_merged=True,
    )

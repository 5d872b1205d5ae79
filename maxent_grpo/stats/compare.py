"""What a figure over problems is worth: an interval for it, and whether two models differ on the same problems.

Problems are the only thing resampled. Each one's figure is an estimate already, from its own samples, and carries their
noise with it; an interval over problems therefore speaks of other problems answered by other samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 10_000
"""Resamples of a bootstrap."""
LEVEL = 0.95
"""Coverage that intervals aim at."""
SEED = 20_260
"""Seed of the resampling: one set of figures always has one interval."""
ROUNDING = 1e-12
"""Means this close to zero are zero that was added up in another order."""
CHUNK = 4_000_000
"""Most picks drawn at once, so that memory does not grow with the number of problems times that of resamples."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over problems and the range that its bootstrap gives."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference of two models over the same problems, its interval and a two-sided p-value."""

    mean: float
    low: float
    high: float
    p: float


def mcnemar(b: int, c: int) -> float:
    """Two-sided exact p-value that two models are right equally often, from the problems on which they disagree.

    Under the hypothesis either model is the right one of a disagreement with probability 1/2, so that b of b + c is
    binomial: p = min(1, 2 sum_{i <= min(b, c)} C(b + c, i) / 2^(b + c)), in whole numbers. 1 without a disagreement.

    Args:
        b: problems that only the first model answers rightly.
        c: problems that only the second answers rightly.

    Raises:
        ValueError: a count is negative.
    """
    if b < 0 or c < 0:
        raise ValueError(f"b={b} and c={c} disagreements: counts cannot be negative")
    term = tail = 1
    for i in range(1, min(b, c) + 1):
        term = term * (b + c - i + 1) // i
        tail += term
    return 1.0 if b == c else 2 * tail / 2 ** (b + c)


def bootstrap_means(figures: NDArray[np.float64], *, level: float = LEVEL, seed: int = SEED) -> list[Interval]:
    """The mean of each figure over problems, and its percentile interval over problems drawn with replacement.

    All figures of one call see the same draws. Where all problems have one value the interval has no width, which says that
    nothing varied, not that nothing would. A single problem says nothing of others, and its interval is NaN.

    Args:
        figures: one row a problem, one column a figure [problems, figures].
        level: coverage that the intervals aim at.
        seed: seed of the draws.

    Raises:
        ValueError: no problems, values that are not finite, or a level outside (0, 1).
    """
    values = _checked(figures)
    lows, highs = _percentiles(values, _resampled_means(values, seed), level)
    means = [math.fsum(column) / len(values) for column in values.T.tolist()]
    # a mean of equal numbers may be rounded past its own interval
    return [Interval(mean, min(low, mean), max(high, mean)) for mean, low, high in zip(means, lows, highs, strict=True)]


def bootstrap_mean(values: Sequence[float], *, level: float = LEVEL, seed: int = SEED) -> Interval:
    """As ``bootstrap_means``, of one figure."""
    return bootstrap_means(np.asarray(values, dtype=np.float64)[:, None], level=level, seed=seed)[0]


def paired_differences(
    figures: NDArray[np.float64], others: NDArray[np.float64], *, level: float = LEVEL, seed: int = SEED
) -> list[Difference]:
    """Mean of figures minus others over the same problems, in the same order; problems are drawn as pairs.

    The p-value is twice the smaller share of resampled differences on either side of zero, each counted with one more
    resample than was drawn, and at most 1: no number of resamples can show a p of 0. Models that never differ have p = 1.

    Raises:
        ValueError: the two are not of one shape, or as ``bootstrap_means``.
    """
    if np.shape(figures) != np.shape(others):
        raise ValueError(f"{np.shape(figures)} and {np.shape(others)} figures are not pairs: compare the same problems")
    differences = _checked(figures) - _checked(others)
    means = _resampled_means(differences, seed)
    lows, highs = _percentiles(differences, means, level)
    fewer = np.minimum((means <= ROUNDING).sum(axis=0), (means >= -ROUNDING).sum(axis=0))
    chances = np.minimum(1.0, 2 * (1 + fewer) / (1 + len(means))) if len(differences) > 1 else fewer * math.nan
    return [
        Difference(*found)
        for found in zip(differences.mean(axis=0).tolist(), lows, highs, chances.tolist(), strict=True)
    ]


def paired_difference(
    values: Sequence[float], others: Sequence[float], *, level: float = LEVEL, seed: int = SEED
) -> Difference:
    """As ``paired_differences``, of one figure."""
    pair = (np.asarray(side, dtype=np.float64)[:, None] for side in (values, others))
    return paired_differences(*pair, level=level, seed=seed)[0]


def _checked(figures: NDArray[np.float64]) -> NDArray[np.float64]:
    array = np.asarray(figures, dtype=np.float64)
    if array.ndim != 2 or not len(array) or not np.isfinite(array).all():
        raise ValueError("expected finite figures, one row for each of at least one problem")
    return array


def _resampled_means(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Means over problems drawn with replacement, as often as NUM_RESAMPLES says [resamples, figures]."""
    generator = np.random.default_rng(seed)
    size = len(values)
    at_once = max(1, CHUNK // size)
    means: list[NDArray[np.float64]] = []
    for done in range(0, NUM_RESAMPLES, at_once):
        num = min(at_once, NUM_RESAMPLES - done)
        means.append(means_of_draws(generator.integers(size, size=(num, size)), values))
    return np.concatenate(means)


def means_of_draws(drawn: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of the drawn rows of ``values`` [rows, figures] for each resample of ``drawn`` [resamples, draws].

    How often each row was drawn times its figures: one product for all figures, and no copy of the drawn rows.
    """
    num, size = len(drawn), len(values)
    places = drawn + size * np.arange(num)[:, None]
    times = np.bincount(places.ravel(), minlength=num * size).reshape(num, size)
    return times @ values / drawn.shape[1]


def _percentiles(
    values: NDArray[np.float64], means: NDArray[np.float64], level: float
) -> tuple[list[float], list[float]]:
    """Ends of the middle ``level`` of the resampled means of ``values``, for each figure."""
    if not 0 < level < 1:
        raise ValueError(f"level={level} is not between 0 and 1")
    if len(values) < 2:
        return [math.nan] * values.shape[1], [math.nan] * values.shape[1]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low.tolist(), high.tolist()

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


def bootstrap_mean(values: Sequence[float], *, level: float = LEVEL, seed: int = SEED) -> Interval:
    """The mean of one figure per problem, and its percentile interval over problems drawn with replacement.

    A single problem says nothing of others, and its interval is NaN.
    Where all problems have one value the interval has no width, which says that nothing varied, not that nothing would.

    Raises:
        ValueError: no values, values that are not finite, or a level outside (0, 1).
    """
    checked = _checked(values)
    low, high = _percentiles(checked, _resampled_means(checked, seed), level)
    return Interval(math.fsum(values) / len(values), low, high)


def paired_bootstrap(
    left: Sequence[float], right: Sequence[float], *, level: float = LEVEL, seed: int = SEED
) -> Difference:
    """Mean of right minus left over the same problems, in the same order; problems are drawn as pairs.

    The p-value is twice the smaller share of resampled differences on either side of zero, each counted with one more
    resample than was drawn, and at most 1: no number of resamples can show a p of 0. Models that never differ have p = 1.

    Raises:
        ValueError: the two are not of one length, or as ``bootstrap_mean``.
    """
    if len(left) != len(right):
        raise ValueError(f"{len(left)} and {len(right)} problems are not pairs: compare the same problems")
    differences = _checked(right) - _checked(left)
    means = _resampled_means(differences, seed)
    low, high = _percentiles(differences, means, level)
    share = (1 + min(int((means <= 0).sum()), int((means >= 0).sum()))) / (1 + len(means))
    return Difference(float(differences.mean()), low, high, math.nan if len(differences) < 2 else min(1.0, 2 * share))


def _checked(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise ValueError("expected one finite figure for each of at least one problem")
    return array


def _resampled_means(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Means of problems drawn with replacement, as often as NUM_RESAMPLES says."""
    generator = np.random.default_rng(seed)
    size = len(values)
    at_once = max(1, CHUNK // size)
    means = [
        values[generator.integers(size, size=(min(at_once, NUM_RESAMPLES - done), size))].mean(axis=1)
        for done in range(0, NUM_RESAMPLES, at_once)
    ]
    return np.concatenate(means)


def _percentiles(values: NDArray[np.float64], means: NDArray[np.float64], level: float) -> tuple[float, float]:
    """The middle ``level`` of the resampled means of ``values``."""
    if not 0 < level < 1:
        raise ValueError(f"level={level} is not between 0 and 1")
    if len(values) < 2:
        return math.nan, math.nan
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

"""Figures of several training runs: what replicates is the seed, and problems are nested within it.

A method was tried as often as it was trained, however many problems each trained policy was asked. Intervals therefore come
from a bootstrap of two levels: seeds are drawn with replacement, then problems within each drawn seed. Two methods that were
trained with the same seeds and asked the same problems are compared by their differences, seed by seed and problem by problem.

Sources: Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8 (hierarchical data); arXiv 1806.08295
(how many seeds).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maxent_grpo.stats.compare import CHUNK, LEVEL, NUM_RESAMPLES, ROUNDING, SEED, Interval, means_of_draws

LEAST_SEEDS = 2
"""Fewest seeds between which anything can vary."""


def two_level_means(
    figures: NDArray[np.float64], *, level: float = LEVEL, seed: int = SEED, num_resamples: int = NUM_RESAMPLES
) -> list[Interval]:
    """Mean over seeds and problems of each figure, with the percentile interval of the two-level bootstrap.

    Every resample draws S seeds with replacement and, within each drawn seed, P problems with replacement; a seed drawn twice
    has its problems drawn twice. All figures of one call, and all calls with one shape and ``seed``, see the same draws. Pass
    differences of two methods over the same seeds and problems for an interval of the paired difference. One seed says
    nothing of others: its interval is NaN.

    Args:
        figures: [seeds, problems, figures]; one problem stands for a figure known only as a mean over problems.
        level: coverage that the intervals aim at.
        seed: seed of the draws.
        num_resamples: resamples of the bootstrap.

    Raises:
        ValueError: not three axes, an empty one, values that are not finite, or a level outside (0, 1).
    """
    values = np.asarray(figures, dtype=np.float64)
    if values.ndim != 3 or not values.size or not np.isfinite(values).all():
        raise ValueError("expected finite figures [seeds, problems, figures], at least one of each")
    if not 0 < level < 1:
        raise ValueError(f"level={level} is not between 0 and 1")
    num_seeds, num_problems, num_figures = values.shape
    flat = values.reshape(num_seeds * num_problems, num_figures)
    means = [math.fsum(column) / len(flat) for column in flat.T.tolist()]
    if num_seeds < LEAST_SEEDS:
        return [Interval(mean, math.nan, math.nan) for mean in means]
    resampled = _resampled(flat, num_seeds, num_problems, seed, num_resamples)
    lows, highs = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    # a mean of equal numbers may be rounded past its own interval
    return [
        Interval(mean, min(low, mean), max(high, mean))
        for mean, low, high in zip(means, lows.tolist(), highs.tolist(), strict=True)
    ]


def _resampled(
    flat: NDArray[np.float64], num_seeds: int, num_problems: int, seed: int, num_resamples: int
) -> NDArray[np.float64]:
    """Means of the resamples [resamples, figures]; rows of ``flat`` are (seed, problem) in that order."""
    generator = np.random.default_rng(seed)
    at_once = max(1, CHUNK // len(flat))
    means: list[NDArray[np.float64]] = []
    for done in range(0, num_resamples, at_once):
        num = min(at_once, num_resamples - done)
        seeds = generator.integers(num_seeds, size=(num, num_seeds, 1))
        problems = generator.integers(num_problems, size=(num, num_seeds, num_problems))
        means.append(means_of_draws((seeds * num_problems + problems).reshape(num, -1), flat))
    return np.concatenate(means)


def iqm(scores: Sequence[float] | NDArray[np.float64]) -> float:
    """Interquartile mean: the mean of what is left when a quarter of all scores is cut off at either end.

    Less moved by one bad run than the mean, and less noisy than the median. Of n scores floor(n / 4) are cut at each end, so
    that up to three scores it is the mean. Source: rliable, arXiv 2108.13264, section 4.3.

    Raises:
        ValueError: no scores, or scores that are not finite.
    """
    from scipy.stats import trim_mean

    return float(trim_mean(_finite(scores).ravel(), 0.25))


def stratified_iqm(
    scores: Sequence[Sequence[float]], *, level: float = LEVEL, seed: int = SEED, num_resamples: int = NUM_RESAMPLES
) -> Interval:
    """IQM over all seeds of all tasks, with the percentile interval of the stratified bootstrap of rliable.

    Every resample draws each task's seeds with replacement among themselves, so that no task is drawn more often than it was
    run. Tasks are not resampled: the interval speaks of these tasks. Source: arXiv 2108.13264, section 4.1.

    Args:
        scores: for each task the scores of its seeds; tasks may have different numbers of seeds.
        level: coverage that the interval aims at.
        seed: seed of the draws.
        num_resamples: resamples of the bootstrap.

    Raises:
        ValueError: no tasks, a task without scores, or scores that are not finite.
    """
    from scipy.stats import trim_mean

    tasks = _tasks(scores)
    middle = iqm(np.concatenate(tasks))
    if min(map(len, tasks)) < LEAST_SEEDS:
        return Interval(middle, math.nan, math.nan)
    drawn = trim_mean(np.concatenate(_redrawn(tasks, seed, num_resamples), axis=1), 0.25, axis=1)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(middle, min(float(low), middle), max(float(high), middle))


def probability_of_improvement(
    scores: Sequence[Sequence[float]],
    others: Sequence[Sequence[float]],
    *,
    level: float = LEVEL,
    seed: int = SEED,
    num_resamples: int = NUM_RESAMPLES,
) -> Interval:
    """Probability that a run of one method scores higher than a run of another, averaged over tasks.

    P(X > Y) = 1/T sum_t 1/(N_t M_t) sum_{i, j} [x_i > y_j] + [x_i = y_j] / 2, the Mann-Whitney statistic over its largest
    value; runs are not taken as pairs. The interval is that of the stratified bootstrap, which draws the runs of both methods.
    It says how often, not by how much. Source: arXiv 2108.13264, section 4.3.

    Args:
        scores: for each task the scores X of the method's seeds.
        others: for each task the scores Y of the other's.
        level: coverage that the interval aims at.
        seed: seed of the draws.
        num_resamples: resamples of the bootstrap.

    Raises:
        ValueError: different numbers of tasks, or as ``stratified_iqm``.
    """
    if len(scores) != len(others):
        raise ValueError(f"{len(scores)} and {len(others)} tasks: compare two methods on the same tasks")
    left, right = _tasks(scores), _tasks(others)
    mean = float(_wins([x[None] for x in left], [y[None] for y in right])[0])
    if min(map(len, [*left, *right])) < LEAST_SEEDS:
        return Interval(mean, math.nan, math.nan)
    drawn = _redrawn([*left, *right], seed, num_resamples)
    low, high = np.quantile(_wins(drawn[: len(left)], drawn[len(left) :]), [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, min(float(low), mean), max(float(high), mean))


def _wins(left: Sequence[NDArray[np.float64]], right: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Share of pairs that the left one wins, ties as halves, averaged over tasks [resamples]; inputs [resamples, seeds]."""
    shares: list[NDArray[np.float64]] = []
    for x, y in zip(left, right, strict=True):
        gaps = x[:, :, None] - y[:, None, :]
        shares.append(((np.sign(np.where(np.abs(gaps) <= ROUNDING, 0.0, gaps)) + 1) / 2).mean(axis=(1, 2)))
    return np.mean(shares, axis=0)


def _redrawn(tasks: Sequence[NDArray[np.float64]], seed: int, num_resamples: int) -> list[NDArray[np.float64]]:
    """Each task's scores drawn with replacement [resamples, seeds]."""
    generator = np.random.default_rng(seed)
    return [task[generator.integers(len(task), size=(num_resamples, len(task)))] for task in tasks]


def _tasks(scores: Sequence[Sequence[float]]) -> list[NDArray[np.float64]]:
    if not len(scores):
        raise ValueError("expected the scores of at least one task")
    return [_finite(task) for task in scores]


def _finite(scores: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if not values.size or not np.isfinite(values).all():
        raise ValueError("expected at least one score, all of them finite")
    return values

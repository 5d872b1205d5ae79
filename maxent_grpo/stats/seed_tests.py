"""Tests over training seeds, of which there are few: exact ones, and how small a p they can give at all.

All take one difference a seed, between two methods that were trained with that seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maxent_grpo.stats.compare import LEVEL, ROUNDING, SEED, mcnemar

MOST_EXACT = 16
"""Most seeds whose 2^n sign patterns are all counted."""
NUM_PATTERNS = 99_999
"""Sign patterns drawn beyond that, fewer than there are; with the observed one 100 000."""
RECOMMENDED_SEEDS = 8
"""Fewest seeds that leave room for one that goes the other way: 7 of 8 have p = .07, and sizes count besides."""
MARGIN = 0.03
"""Difference of pass@1 that is still called equal: 3 points of 100."""


@dataclass(frozen=True, slots=True)
class SignFlip:
    """A two-sided p-value, and whether it was counted over all sign patterns or drawn."""

    p: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Equivalence:
    """One-sided p-values that a mean difference lies within a margin of zero."""

    p_above: float
    """That it is above -margin: non-inferiority."""
    p_below: float
    """That it is below +margin: non-superiority."""
    margin: float

    @property
    def p(self) -> float:
        """That it is within the margin on both sides."""
        return max(self.p_above, self.p_below)


def sign_flip(differences: Sequence[float], *, seed: int = SEED) -> SignFlip:
    """Paired permutation test: how often the mean difference is as large when each seed's sign is a coin's.

    If the methods do not differ, a seed's difference is as likely to have either sign. p is the share of sign patterns whose
    |sum| is at least the observed one, over all 2^n patterns up to MOST_EXACT seeds; beyond, over NUM_PATTERNS drawn ones and
    the observed pattern, so that p cannot be 0. The smallest exact p is 2 / 2^n. Source: Fisher, The Design of
    Experiments, 1935, section 21.

    Raises:
        ValueError: no differences, or differences that are not finite.
    """
    from scipy.stats import permutation_test

    values = _checked(differences)
    is_exact = len(values) <= MOST_EXACT
    if len(values) == 1 or not values.any():
        return SignFlip(1.0, is_exact)
    found = permutation_test(
        (values,),
        _mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=2 ** len(values) if is_exact else NUM_PATTERNS,
        batch=4_096,
        rng=np.random.default_rng(seed),
    )
    return SignFlip(float(found.pvalue), is_exact)


def _mean(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    return values.mean(axis=axis)


def sign_test(differences: Sequence[float]) -> float:
    """Two-sided exact p of the signs alone, zero differences left out; 1 where every difference is zero.

    It minds no sizes and is the floor of what can be said: 5 of 5 have p = .0625, 6 of 6 .03125, 9 of 10 .0215. The same
    binomial as McNemar's test, of seeds instead of problems. Source: Arbuthnott, 1710; Conover, Practical Nonparametric
    Statistics, section 3.4.

    Raises:
        ValueError: no differences, or differences that are not finite.
    """
    values = _checked(differences)
    return mcnemar(int((values > 0).sum()), int((values < 0).sum()))


def smallest_p(num_seeds: int, num_tests: int = 1) -> float:
    """Smallest two-sided p that a test over the signs of so many seeds can give, 2 / 2^n, times the tests of its family."""
    return min(1.0, num_tests * 2.0 / 2.0**num_seeds)


def least_seeds(num_tests: int = 1, level: float = 1 - LEVEL) -> int:
    """Fewest seeds of which a two-sided sign test can give a p at or below ``level`` after Holm, when all go one way.

    6 for a single test at .05, 7 for a family of two or three.
    """
    return math.ceil(math.log2(2.0 * num_tests / level) - 1e-9)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, in the given order: the chance of one false positive or more stays at the level.

    Step down: with p_(1) <= ... <= p_(m), adjusted p_(i) = max_{j <= i} min(1, (m - j + 1) p_(j)). Holds whatever the
    dependence of the tests. Source: Holm, Scandinavian Journal of Statistics 6, 1979.

    Raises:
        ValueError: a value is not a probability.
    """
    values = np.asarray(p_values, dtype=np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"expected probabilities, got {list(p_values)}")
    order = np.argsort(values, kind="stable")
    stepped = np.minimum(1.0, values[order] * (len(values) - np.arange(len(values))))
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(stepped) if len(values) else stepped
    return adjusted.tolist()


def equivalence(differences: Sequence[float], margin: float = MARGIN) -> Equivalence:
    """Two one-sided t-tests (TOST): whether the mean difference lies within ``margin`` of zero.

    "No significant difference" is not "equal": few seeds make anything insignificant. Here inequality is the hypothesis to be
    refuted, from both sides: t = (mean ± margin) / (sd / sqrt(n)) with n - 1 degrees of freedom; the larger p speaks for
    equality, and ``p_above`` alone for non-inferiority. Assumes differences about normal over seeds. NaN for fewer than two
    seeds, or differences without any variation. Source: Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987.

    Raises:
        ValueError: no differences, differences that are not finite, or a margin that is not positive.
    """
    values = _checked(differences)
    if not margin > 0:
        raise ValueError(f"margin={margin} is not positive: no difference is smaller")
    if len(values) < 2 or np.ptp(values) < 1e-12:
        return Equivalence(math.nan, math.nan, margin)
    from scipy.stats import t as student

    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    above = student.sf((mean + margin) / error, len(values) - 1)
    below = student.cdf((mean - margin) / error, len(values) - 1)
    return Equivalence(float(above), float(below), margin)


def _checked(differences: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError("expected at least one finite difference, one a seed")
    return np.where(
        np.abs(values) <= ROUNDING, 0.0, values
    )  # two means that are equal differ in the last digit as often as not

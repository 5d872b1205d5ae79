"""What n samples of one problem say about the policy: success, diversity and agreement, without sampling noise of our own.

Every estimator here is for one problem and exact: an expectation over all subsets of k of the n samples (drawn without
replacement), hence unbiased for k fresh samples, or an expectation under given probabilities. None resamples. Averages
over problems, and intervals over seeds, belong to the caller.

A mode is the canonical key of a right answer; a key is the canonical form of any answer, None where none could be parsed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that at least one of k samples is right: 1 - C(n-c, k) / C(n, k), as a product that cannot overflow.

    1 - prod_{i=n-c+1}^{n} (1 - k/i); exactly 1 when fewer than k samples are wrong. Source: arXiv 2107.03374, eq. 1.

    Raises:
        ValueError: not 1 <= k <= n, or not 0 <= c <= n.
    """
    _check_draw(num_samples, k)
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} of {num_samples} samples cannot be correct: count each sample once")
    if num_samples - num_correct < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(num_samples - num_correct + 1, num_samples + 1)))


def mean_at_k(num_samples: int, num_correct: int) -> float:
    """Expected share of right samples among k, which is c / n for every k; equals pass@1.

    Raises:
        ValueError: no samples, or not 0 <= c <= n.
    """
    return pass_at_k(num_samples, num_correct, 1)


def distinct_at_k(mode_counts: Sequence[int], num_samples: int, k: int) -> float:
    """Expected number of different modes among k samples: sum over modes m of 1 - C(n - n_m, k) / C(n, k).

    Args:
        mode_counts: how many of the samples hit each mode; modes never hit may be left out or be 0.
        num_samples: n, right and wrong samples together.
        k: size of the subset, 1 <= k <= n.

    Raises:
        ValueError: counts that are negative or exceed the samples, or k out of range.
    """
    _check_draw(num_samples, k)
    if sum(mode_counts) > num_samples:
        raise ValueError(
            f"modes were hit {sum(mode_counts)} times by {num_samples} samples: a sample hits one mode at most"
        )
    return math.fsum(pass_at_k(num_samples, count, k) for count in mode_counts)


def coverage_at_k(mode_counts: Sequence[int], num_samples: int, k: int, num_modes: int) -> float:
    """Expected share of the problem's modes found by k samples: distinct@k over the number of modes it has.

    Raises:
        ValueError: fewer modes than were hit, or as ``distinct_at_k``.
    """
    num_hit = sum(count > 0 for count in mode_counts)
    if num_modes < max(num_hit, 1):
        raise ValueError(f"{num_hit} different modes were hit but the problem is said to have {num_modes}")
    return distinct_at_k(mode_counts, num_samples, k) / num_modes


def distinct_at_k_from_probabilities(mode_probabilities: Sequence[float], k: int) -> float:
    """Expected number of different modes among k independent samples: sum over modes of 1 - (1 - pi_m)^k.

    Args:
        mode_probabilities: exact probability of each mode under the policy; what is missing to 1 is wrong answers.
        k: number of samples, >= 1.

    Raises:
        ValueError: not probabilities, or k < 1.
    """
    pi = _probabilities(mode_probabilities)
    _check_positive(k)
    with np.errstate(divide="ignore"):  # a mode of probability 1 has log(1 - pi) = -inf, and is found for certain
        return float(-np.expm1(k * np.log1p(-pi)).sum())


def coverage_at_k_from_probabilities(mode_probabilities: Sequence[float], k: int) -> float:
    """Expected share of the modes found by k independent samples; one probability for every mode, 0 included.

    Raises:
        ValueError: no modes, or as ``distinct_at_k_from_probabilities``.
    """
    if len(mode_probabilities) == 0:
        raise ValueError("coverage of a problem without modes is undefined: leave such problems out")
    return distinct_at_k_from_probabilities(mode_probabilities, k) / len(mode_probabilities)


def pass_at_k_from_probabilities(mode_probabilities: Sequence[float], k: int) -> float:
    """Probability that at least one of k independent samples is right: 1 - (1 - sum of mode probabilities)^k.

    Raises:
        ValueError: not probabilities, or k < 1.
    """
    solved = min(float(_probabilities(mode_probabilities).sum()), 1.0)  # a rounding error above 1 is within the check
    return distinct_at_k_from_probabilities([solved], k)


def majority_at_k(keys: Sequence[str | None], correct_keys: Collection[str], k: int) -> float:
    """Probability that the most frequent key among k of the samples is right, over all subsets of k.

    None never wins. Keys tied for the lead win with equal probability each, whether right or wrong; a subset without any
    key is wrong. Exact in integer arithmetic for every n and k.

    Args:
        keys: one per sample.
        correct_keys: the right ones among them.
        k: size of the subset, 1 <= k <= n.

    Raises:
        ValueError: k out of range.
    """
    _check_draw(len(keys), k)
    counts = Counter(keys)
    num_unparsed = counts.pop(None, 0)

    def ways(count: int) -> list[int]:
        return [math.comb(count, taken) for taken in range(k + 1)]

    right = [ways(count) for key, count in counts.items() if key in correct_keys]
    wrong = [ways(count) for key, count in counts.items() if key not in correct_keys]
    num_draws = math.comb(len(keys), k)
    # whole numbers up to 2^53 are exact in float64, whose arithmetic is many times faster than that of Python's integers
    kind = float if num_draws * k <= 2**53 else object
    return float(_won_mass(right, wrong, ways(num_unparsed), k, kind) / num_draws)


def majority_at_k_from_probabilities(probabilities: Sequence[float], is_correct: Sequence[bool], k: int) -> float:
    """Probability that the most frequent key among k independent samples is right; ties as in ``majority_at_k``.

    Args:
        probabilities: of every key; what is missing to 1 is unparseable and never wins.
        is_correct: which keys are right, aligned with ``probabilities``.
        k: number of samples, 1 to 170 (factorials of more leave float64).

    Raises:
        ValueError: not probabilities, or k out of range.
    """
    pi = _probabilities(probabilities)
    if not 1 <= k <= 170:
        raise ValueError(f"majority vote of k={k} samples: k must lie between 1 and 170")

    def density(probability: float) -> list[float]:
        return [probability**taken / math.factorial(taken) for taken in range(k + 1)]

    right = [density(float(p)) for p, ok in zip(pi, is_correct, strict=True) if ok]
    wrong = [density(float(p)) for p, ok in zip(pi, is_correct, strict=True) if not ok]
    blank = density(max(1.0 - float(pi.sum()), 0.0))
    return float(_won_mass(right, wrong, blank, k, float) * math.factorial(k))


def semantic_entropy(keys: Sequence[str | None], log_likelihoods: Sequence[float] | None = None) -> float:
    """Entropy [nats] of the distribution over keys; every sample without a key is a meaning of its own.

    The mass of a key is its share of the samples or, with ``log_likelihoods``, its share of their softmax (pass
    length-normalised log-likelihoods [nats]).

    Raises:
        ValueError: no samples, or log-likelihoods that are not finite or not aligned with the keys.
    """
    if not keys:
        raise ValueError("semantic entropy of no samples is undefined")
    scores = np.zeros(len(keys)) if log_likelihoods is None else np.asarray(log_likelihoods, dtype=np.float64)
    if scores.shape != (len(keys),) or not np.isfinite(scores).all():
        raise ValueError(f"{len(keys)} keys need as many finite log-likelihoods, got {log_likelihoods}")
    masses: dict[object, float] = {}
    for index, (key, mass) in enumerate(zip(keys, np.exp(scores - scores.max()), strict=True)):
        cluster = key if key is not None else index
        masses[cluster] = masses.get(cluster, 0.0) + float(mass)
    return _entropy(list(masses.values()))


def effective_modes(mode_masses: Sequence[float]) -> float:
    """Effective number of modes, exp of the entropy of the policy restricted to right answers; 0 when it has none there.

    Between 1 (always the same right answer) and the number of modes (all equally likely).

    Args:
        mode_masses: probability, or number of samples, of each mode; any common scale cancels.

    Raises:
        ValueError: negative or non-finite masses.
    """
    return math.exp(_entropy(mode_masses)) if _checked_masses(mode_masses).any() else 0.0


def mode_entropy_ratio(mode_masses: Sequence[float], num_modes: int) -> float:
    """Entropy over the modes as a share of its maximum log(num_modes): 1 when all modes are equally likely.

    Raises:
        ValueError: fewer than two modes, no mass on any of them, or negative or non-finite masses.
    """
    if num_modes < 2 or not _checked_masses(mode_masses).any():
        raise ValueError(
            f"the spread over {num_modes} modes with total mass {sum(mode_masses)} is undefined: leave problems with fewer "
            "than two modes, or never solved, out of the average"
        )
    return _entropy(mode_masses) / math.log(num_modes)


def _won_mass(
    right: Sequence[Sequence[float]], wrong: Sequence[Sequence[float]], blank: Sequence[float], k: int, kind: type
) -> Fraction:
    """Total weight of the draws of k in which a right key wins.

    Each key is its list of weights of being drawn 0..k times; the weight of a draw is the product over keys. For every
    leading count `top`, the keys of either kind are convolved over (number drawn, keys tied at `top`), none above it.
    """
    by_tied: list[Any] = [0] * (k + 1)  # by the number of keys tied for the lead: weight times right keys among them
    for top in range(1, k + 1):
        if not any(key[top] for key in right):
            continue
        won = _tied_weights(right, [1], top, k, kind)
        lost = _tied_weights(wrong, blank, top, k, kind)
        weights = won.T @ lost[::-1]  # [right keys tied, wrong keys tied], numbers drawn summing to k
        weights *= np.arange(len(weights), dtype=kind)[:, None]
        for num_right, num_wrong in np.argwhere(weights).tolist():
            by_tied[num_right + num_wrong] += weights[num_right, num_wrong]
    return sum((Fraction(mass) / tied for tied, mass in enumerate(by_tied) if mass), Fraction(0))


def _tied_weights(
    keys: Sequence[Sequence[float]], unable_to_win: Sequence[float], top: int, k: int, kind: type
) -> NDArray[Any]:
    """Weight of drawing d samples in all with exactly t keys drawn `top` times and none more often, as [d, t].

    With ``kind`` object entries stay Python numbers: with integer weights the result is exact and cannot overflow.
    """
    weights = np.zeros((k + 1, 1), dtype=kind)
    weights[: len(unable_to_win), 0] = unable_to_win
    for key in keys:
        most = min(top, max(taken for taken in range(k + 1) if key[taken] != 0))
        num_tied = min(weights.shape[1] + (most == top), k // top + 1)
        grown = np.zeros((k + 1, num_tied), dtype=kind)
        num_before = weights.shape[1]
        for taken in range(min(most + 1, top)):
            grown[taken:, :num_before] += key[taken] * weights[: k + 1 - taken]
        if most == top:
            grown[top:, 1:] += key[top] * weights[: k + 1 - top, : num_tied - 1]
        weights = grown
    return weights


def _entropy(masses: Sequence[float]) -> float:
    """Entropy [nats] of masses with a positive total, which are normalised here."""
    values = _checked_masses(masses)
    shares = values[values > 0] / values.sum()
    return abs(float((shares * np.log(shares)).sum()))  # every term is <= 0; a single mass gives 0, not -0


def _checked_masses(masses: Sequence[float]) -> NDArray[np.float64]:
    """The masses as an array; raises ValueError if one is negative or not finite."""
    values = np.asarray(masses, dtype=np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"masses must be finite and not negative, got {list(masses)}")
    return values


def _probabilities(values: Sequence[float]) -> NDArray[np.float64]:
    """The values as an array; raises ValueError unless they are probabilities that sum to at most 1."""
    pi = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(pi).all() and (pi >= 0).all() and pi.sum() <= 1 + 1e-9):
        raise ValueError(f"expected probabilities that sum to at most 1, got {list(values)}")
    return np.minimum(pi, 1.0)  # one of 1 may have been rounded to the next number above


def _check_positive(k: int) -> None:
    """Raises ValueError unless at least one sample is drawn."""
    if k < 1:
        raise ValueError(f"k={k} samples: draw at least one")


def _check_draw(num_samples: int, k: int) -> None:
    """Raises ValueError unless k of the samples can be drawn."""
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"k={k} of {num_samples} samples cannot be drawn: take 1 <= k <= the number of samples, or draw more samples"
        )

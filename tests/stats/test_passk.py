"""Estimators over n samples of one problem: worked examples, enumeration of every subset, properties, limits."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import golden

from maxent_grpo.stats.passk import (
    coverage_at_k,
    coverage_at_k_from_probabilities,
    distinct_at_k,
    distinct_at_k_from_probabilities,
    effective_modes,
    majority_at_k,
    majority_at_k_from_probabilities,
    mean_at_k,
    mode_entropy_ratio,
    pass_at_k,
    pass_at_k_from_probabilities,
    semantic_entropy,
)

exactly = {"rel": 0, "abs": 1e-12}
quick = settings(deadline=None, max_examples=60)


@st.composite
def draws(draw: st.DrawFn, largest: int = 40) -> tuple[int, int, int]:
    """(n, c, k) with 1 <= k <= n and 0 <= c <= n."""
    num_samples = draw(st.integers(1, largest))
    return num_samples, draw(st.integers(0, num_samples)), draw(st.integers(1, num_samples))


@st.composite
def mode_draws(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """(counts of the modes, n, k), wrong answers filling up to n."""
    counts = draw(st.lists(st.integers(0, 6), max_size=6))
    num_samples = max(sum(counts) + draw(st.integers(0, 8)), 1)
    return counts, num_samples, draw(st.integers(1, num_samples))


@st.composite
def key_draws(draw: st.DrawFn) -> tuple[list[str | None], int]:
    keys = draw(st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=8))
    return keys, draw(st.integers(1, len(keys)))


@st.composite
def distributions(draw: st.DrawFn) -> list[float]:
    """Probabilities of some modes, summing to at most 1."""
    weights = draw(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6))
    total = max(math.fsum(weights), 1.0)
    return [weight / total for weight in weights[1:]]


# pass@k and mean@k


def test_pass_at_k_reproduces_the_worked_examples():
    expected = golden("eval.pass@k")
    values = {
        f"n{n}c{c}k{k}": pass_at_k(n, c, k) for n, c, k in ((10, 3, 1), (10, 3, 5), (8, 0, 4), (8, 5, 4), (200, 1, 100))
    }
    assert values == pytest.approx(expected, **exactly)


@pytest.mark.parametrize(
    ("num_samples", "num_correct", "k", "value"), [(4, 1, 4, 1.0), (4, 1, 2, 0.5), (8, 3, 4, 13 / 14)]
)
def test_pass_at_k_is_not_biased_low_as_resampling_with_replacement_is(num_samples, num_correct, k, value):
    assert pass_at_k(num_samples, num_correct, k) == pytest.approx(value, **exactly)
    with_replacement = 1 - (1 - num_correct / num_samples) ** k
    assert pass_at_k(num_samples, num_correct, k) > with_replacement


def test_pass_at_k_equals_the_binomial_ratio_where_binomials_leave_float64():
    exact = 1 - math.comb(1990, 1000) / math.comb(2000, 1000)
    assert pass_at_k(2000, 10, 1000) == pytest.approx(exact, rel=1e-12)


def test_pass_at_k_averages_to_the_truth_over_every_outcome_of_n_samples():
    success, num_samples, k = 0.3, 6, 4
    mean = math.fsum(
        math.comb(num_samples, c) * success**c * (1 - success) ** (num_samples - c) * pass_at_k(num_samples, c, k)
        for c in range(num_samples + 1)
    )
    assert mean == pytest.approx(1 - (1 - success) ** k, **exactly)


@quick
@given(draws())
def test_pass_at_k_lies_between_0_and_1_and_never_falls_with_k_or_with_right_samples(draw):
    num_samples, num_correct, k = draw
    value = pass_at_k(num_samples, num_correct, k)
    assert 0.0 <= value <= 1.0
    if k < num_samples:
        assert pass_at_k(num_samples, num_correct, k + 1) >= value - 1e-12
    if num_correct < num_samples:
        assert pass_at_k(num_samples, num_correct + 1, k) >= value - 1e-12


@quick
@given(draws())
def test_one_sample_passes_as_often_as_the_mean(draw):
    num_samples, num_correct, _ = draw
    assert pass_at_k(num_samples, num_correct, 1) == pytest.approx(num_correct / num_samples, **exactly)
    assert mean_at_k(num_samples, num_correct) == pytest.approx(num_correct / num_samples, **exactly)


@pytest.mark.parametrize(("num_samples", "num_correct", "k"), [(4, 1, 5), (4, 1, 0), (0, 0, 1), (4, 5, 2), (4, -1, 2)])
def test_impossible_counts_are_refused(num_samples, num_correct, k):
    with pytest.raises(ValueError, match="cannot be"):
        pass_at_k(num_samples, num_correct, k)


# distinct@k and coverage@k


def test_distinct_and_coverage_reproduce_the_worked_examples():
    assert distinct_at_k([3, 1, 1], 8, 4) == pytest.approx(golden("eval.distinct@4_of_n8_counts3,1,1"), **exactly)
    assert coverage_at_k([3, 1, 1], 8, 4, num_modes=5) == pytest.approx(golden("eval.coverage@4_M5"), **exactly)
    assert distinct_at_k_from_probabilities([0.5, 0.3, 0.1], 8) == pytest.approx(
        golden("eval.exact_distinct@8_pi_.5_.3_.1"), **exactly
    )


def test_distinct_at_k_is_the_mean_over_every_subset():
    samples = ["a"] * 3 + ["b", "c"] + [None] * 3
    subsets = list(itertools.combinations(samples, 4))
    mean = sum(len(set(subset) - {None}) for subset in subsets) / len(subsets)
    assert distinct_at_k([3, 1, 1], 8, 4) == pytest.approx(mean, **exactly)


@quick
@given(mode_draws())
def test_distinct_at_k_never_exceeds_k_or_the_modes_nor_falls_with_k(draw):
    counts, num_samples, k = draw
    value = distinct_at_k(counts, num_samples, k)
    assert 0.0 <= value <= min(k, sum(count > 0 for count in counts)) + 1e-12
    assert value >= pass_at_k(num_samples, sum(counts), k) - 1e-12
    if k < num_samples:
        assert distinct_at_k(counts, num_samples, k + 1) >= value - 1e-12


@quick
@given(mode_draws())
def test_one_sample_is_one_mode_or_none_and_all_samples_show_every_mode_that_was_hit(draw):
    counts, num_samples, _ = draw
    assert distinct_at_k(counts, num_samples, 1) == pytest.approx(mean_at_k(num_samples, sum(counts)), **exactly)
    assert distinct_at_k(counts, num_samples, num_samples) == sum(count > 0 for count in counts)


@quick
@given(mode_draws())
def test_coverage_is_distinct_over_the_number_of_modes(draw):
    counts, num_samples, k = draw
    num_modes = len(counts) + 1
    expected = distinct_at_k(counts, num_samples, k) / num_modes
    assert coverage_at_k(counts, num_samples, k, num_modes) == pytest.approx(expected, **exactly)


@pytest.mark.parametrize(
    ("counts", "num_samples", "num_modes"), [([3, 2], 4, 5), ([1, 1], 4, 1), ([], 4, 0), ([-1, 2], 4, 5)]
)
def test_inconsistent_mode_counts_are_refused(counts, num_samples, num_modes):
    with pytest.raises(ValueError, match=r"modes|cannot be correct"):
        coverage_at_k(counts, num_samples, 2, num_modes)


@quick
@given(distributions(), st.integers(1, 20))
def test_exact_distinct_and_coverage_are_the_expectations_over_independent_samples(pi, k):
    expected = math.fsum(1 - (1 - p) ** k for p in pi)
    assert distinct_at_k_from_probabilities(pi, k) == pytest.approx(expected, abs=1e-12)
    assert coverage_at_k_from_probabilities(pi, k) == pytest.approx(expected / len(pi), abs=1e-12)
    assert pass_at_k_from_probabilities(pi, k) == pytest.approx(1 - max(1 - math.fsum(pi), 0.0) ** k, abs=1e-12)


def test_the_estimate_from_samples_averages_to_the_exact_value():
    pi, num_samples, k = [0.5, 0.3], 5, 3
    mean = 0.0
    for outcome in itertools.product((0, 1, 2), repeat=num_samples):
        probability = math.prod((0.5, 0.3, 0.2)[key] for key in outcome)
        mean += probability * distinct_at_k([outcome.count(0), outcome.count(1)], num_samples, k)
    assert distinct_at_k_from_probabilities(pi, k) == pytest.approx(mean, **exactly)


def test_exact_values_at_the_edges_of_probability():
    assert distinct_at_k_from_probabilities([1.0, 0.0], 3) == 1.0
    assert coverage_at_k_from_probabilities([1.0, 0.0], 3) == 0.5
    assert pass_at_k_from_probabilities([], 3) == 0.0
    assert distinct_at_k_from_probabilities([1e-18], 2) == pytest.approx(2e-18, rel=1e-12)


@pytest.mark.parametrize("pi", [[0.7, 0.7], [-0.1], [math.nan], [1.5]])
def test_what_is_not_a_distribution_is_refused(pi):
    with pytest.raises(ValueError, match="probabilities that sum to at most 1"):
        distinct_at_k_from_probabilities(pi, 2)
    with pytest.raises(ValueError, match="probabilities that sum to at most 1"):
        majority_at_k_from_probabilities(pi, [True] * len(pi), 2)


def test_undefined_exact_values_are_refused():
    with pytest.raises(ValueError, match="without modes"):
        coverage_at_k_from_probabilities([], 2)
    with pytest.raises(ValueError, match="at least one"):
        distinct_at_k_from_probabilities([0.5], 0)
    with pytest.raises(ValueError, match="between 1 and 170"):
        majority_at_k_from_probabilities([0.5], [True], 171)


# maj@k


def enumerated_majority(keys: list[str | None], correct: set[str], k: int) -> float:
    """The plurality vote over every subset, ties shared equally."""
    total = 0.0
    subsets = list(itertools.combinations(keys, k))
    for subset in subsets:
        votes = Counter(key for key in subset if key is not None)
        leaders = [key for key, count in votes.items() if count == max(votes.values())]
        total += sum(key in correct for key in leaders) / len(leaders) if leaders else 0.0
    return total / len(subsets)


def test_a_certain_mode_whose_probability_was_rounded_upwards_is_found_for_certain():
    assert pass_at_k_from_probabilities([1.0000000000000004], 3) == 1.0
    assert distinct_at_k_from_probabilities([1.0000000000000002, 0.0], 1) == 1.0
    with pytest.raises(ValueError, match="at most 1"):
        distinct_at_k_from_probabilities([1.001], 1)


def test_the_majority_of_independent_samples_reproduces_the_worked_example():
    value = majority_at_k_from_probabilities([0.4, 0.35, 0.25], [True, False, False], 3)
    assert value == pytest.approx(golden("eval.maj@3_p.4.35.25_firstok"), **exactly)


@quick
@given(key_draws(), st.sets(st.sampled_from(["a", "b", "c", "d"])))
def test_the_majority_vote_equals_the_enumeration_of_every_subset(draw, correct):
    keys, k = draw
    assert majority_at_k(keys, correct, k) == pytest.approx(enumerated_majority(keys, correct, k), **exactly)


def test_ties_are_shared_whatever_the_order_of_the_samples():
    assert majority_at_k(["wrong", "right"], {"right"}, 2) == 0.5
    assert majority_at_k(["right", "wrong"], {"right"}, 2) == 0.5
    assert majority_at_k(["right", "also right", "wrong"], {"right", "also right"}, 3) == pytest.approx(2 / 3)


def test_unparseable_samples_never_win_the_vote():
    assert majority_at_k([None, None, None, "right"], {"right"}, 4) == 1.0
    assert majority_at_k([None, None, None, "right"], {"right"}, 1) == 0.25
    assert majority_at_k([None, None], {"right"}, 2) == 0.0


def test_the_majority_of_one_sample_is_the_mean():
    keys = ["a", "a", "b", None, "c"]
    assert majority_at_k(keys, {"a", "c"}, 1) == pytest.approx(mean_at_k(5, 3), **exactly)
    assert majority_at_k_from_probabilities([0.4, 0.2, 0.2], [True, False, True], 1) == pytest.approx(0.6, **exactly)


def test_the_majority_stays_exact_for_subsets_too_many_to_enumerate():
    keys = [f"key-{index % 20}" for index in range(100)]  # all keys alike: each wins with probability 1/20
    assert majority_at_k(keys, {"key-3"}, 40) == pytest.approx(1 / 20, **exactly)


def test_the_majority_from_probabilities_equals_the_enumeration_of_every_outcome():
    pi, is_correct, k = [0.35, 0.3, 0.15], [False, True, True], 4
    correct = {"1", "2"}
    mean = 0.0
    for outcome in itertools.product(range(4), repeat=k):
        keys = [None if key == 3 else str(key) for key in outcome]
        mean += math.prod((*pi, 0.2)[key] for key in outcome) * enumerated_majority(keys, correct, k)
    assert majority_at_k_from_probabilities(pi, is_correct, k) == pytest.approx(mean, **exactly)


def test_more_votes_than_samples_are_refused():
    with pytest.raises(ValueError, match="k=3 of 2 samples"):
        majority_at_k(["a", "b"], {"a"}, 3)


# semantic entropy and effective modes


def test_semantic_entropy_reproduces_the_worked_example():
    keys = ["a"] * 4 + ["b"] * 3 + ["c"]
    assert semantic_entropy(keys) == pytest.approx(golden("eval.semantic_entropy_counts_4_3_1"), **exactly)


def test_unparseable_samples_are_meanings_of_their_own():
    assert semantic_entropy([None, None, None, None]) == pytest.approx(math.log(4), **exactly)
    assert semantic_entropy(["a", "a", "b", None]) == pytest.approx(1.5 * math.log(2), **exactly)


def test_semantic_entropy_weighted_by_likelihood_uses_the_softmax_of_the_log_likelihoods():
    weights = [math.exp(value) for value in (-0.5, -0.7, -1.0, -0.6)]
    shares = [(weights[0] + weights[1]) / sum(weights), weights[2] / sum(weights), weights[3] / sum(weights)]
    expected = -math.fsum(share * math.log(share) for share in shares)
    keys = ["a", "a", "b", None]
    assert semantic_entropy(keys, [-0.5, -0.7, -1.0, -0.6]) == pytest.approx(expected, **exactly)
    shifted = semantic_entropy(keys, [-1000.5, -1000.7, -1001.0, -1000.6])
    assert shifted == pytest.approx(expected, abs=1e-12)


def test_a_single_meaning_has_no_entropy():
    assert math.copysign(1.0, semantic_entropy(["a", "a"])) == 1.0
    assert semantic_entropy(["a", "a"]) == 0.0


@pytest.mark.parametrize("scores", [[0.0], [0.0, math.nan], [0.0, -math.inf]])
def test_log_likelihoods_that_do_not_fit_the_keys_are_refused(scores):
    with pytest.raises(ValueError, match="2 keys need as many finite"):
        semantic_entropy(["a", "b"], scores)


def test_the_entropy_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        semantic_entropy([])


def test_effective_modes_lie_between_one_mode_and_all_of_them():
    assert effective_modes([0.2, 0.2, 0.2]) == pytest.approx(3.0, **exactly)
    assert effective_modes([7, 0, 0]) == 1.0
    assert effective_modes([0.5, 0.25, 0.25]) == pytest.approx(2**1.5, **exactly)
    assert effective_modes([2, 1, 1]) == pytest.approx(2**1.5, **exactly)
    assert effective_modes([0.0, 0.0]) == effective_modes([]) == 0.0


def test_the_mode_entropy_ratio_is_the_share_of_the_largest_entropy():
    assert mode_entropy_ratio([3, 3, 3, 3], 4) == pytest.approx(1.0, **exactly)
    assert mode_entropy_ratio([0.3, 0.3], 4) == pytest.approx(0.5, **exactly)
    assert mode_entropy_ratio([5, 0], 2) == 0.0


@pytest.mark.parametrize(("masses", "num_modes"), [([1.0], 1), ([0.0, 0.0], 2), ([], 2)])
def test_the_spread_over_one_mode_or_without_any_mass_is_refused(masses, num_modes):
    with pytest.raises(ValueError, match="undefined"):
        mode_entropy_ratio(masses, num_modes)


@pytest.mark.parametrize("masses", [[-1.0, 1.0], [math.nan], [math.inf, 1.0]])
def test_masses_that_are_negative_or_not_finite_are_refused(masses):
    with pytest.raises(ValueError, match="finite and not negative"):
        effective_modes(masses)

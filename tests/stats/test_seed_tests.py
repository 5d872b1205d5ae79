"""Tests over seeds: worked examples, all sign patterns counted by hand, and error rates on drawn differences."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from support.golden import golden

from maxent_grpo.stats.seed_tests import MOST_EXACT, equivalence, holm, least_seeds, sign_flip, sign_test, smallest_p


def test_sign_flip_is_the_worked_example_and_does_not_mind_order_or_sign() -> None:
    differences = [0.1, 0.2, 0.15, 0.05, -0.02]
    found = sign_flip(differences)
    assert found.p == golden("eval.signflip_perm_p_[.1,.2,.15,.05,-.02]")
    assert found.is_exact
    assert sign_flip(differences[::-1]).p == sign_flip([-each for each in differences]).p == found.p


@pytest.mark.parametrize("num_seeds", [1, 2, 3, 6, 9])
def test_sign_flip_counts_every_pattern(num_seeds: int) -> None:
    values = np.random.default_rng(num_seeds).normal(0.4, 1.0, num_seeds)
    sums = [
        abs(sum(s * v for s, v in zip(p, values, strict=True))) for p in itertools.product((1, -1), repeat=num_seeds)
    ]
    share = np.mean([each >= abs(values.sum()) - 1e-12 for each in sums])
    assert sign_flip(values.tolist()).p == pytest.approx(share)


def test_beyond_the_exact_patterns_are_drawn_and_said_to_be() -> None:
    values = np.random.default_rng(3).normal(0.5, 1.0, MOST_EXACT + 1).tolist()
    found, again = sign_flip(values), sign_flip(values)
    assert not found.is_exact
    assert found == again, "the draws are seeded"
    shares = np.array(list(itertools.product((1, -1), repeat=MOST_EXACT + 1))) @ np.array(values)
    assert found.p == pytest.approx(np.mean(np.abs(shares) >= abs(sum(values)) - 1e-12), abs=0.005)
    assert sign_flip([1.0] * 20).p > 0, "a drawn p cannot be 0"


def test_two_equal_means_are_a_tie_whatever_their_last_digit() -> None:
    tie = (0.1 + 0.2) - 0.3
    assert tie != 0
    assert sign_test([0.02, 0.03, 0.01, 0.04, 0.02, tie]) == sign_test([0.02, 0.03, 0.01, 0.04, 0.02]) == 0.0625
    assert sign_test([tie] * 6) == sign_flip([tie] * 6).p == 1.0


def test_no_difference_has_p_1() -> None:
    assert sign_flip([0.0, 0.0, 0.0]).p == 1.0
    assert sign_flip([0.5]).p == 1.0
    assert sign_test([0.0, 0.0]) == 1.0


@pytest.mark.parametrize(("wins", "total"), [(5, 5), (6, 6), (8, 8), (9, 10)])
def test_sign_test_is_the_worked_example(wins: int, total: int) -> None:
    differences = [0.3] * wins + [-2.0] * (total - wins)
    assert sign_test(differences) == pytest.approx(golden("eval.sign_test_two_sided")[f"{wins}/{total}"], abs=1e-12)
    assert sign_test([*differences, 0.0]) == sign_test(differences), "a tie says nothing"


def test_six_seeds_are_the_fewest() -> None:
    assert least_seeds() == 6
    assert [least_seeds(tests) for tests in (1, 2, 3, 6)] == [6, 7, 7, 8]
    for tests in (1, 2, 3, 6):
        assert holm([smallest_p(least_seeds(tests))] * tests)[0] == smallest_p(least_seeds(tests), tests) <= 0.05
        assert smallest_p(least_seeds(tests) - 1, tests) > 0.05
    assert [smallest_p(n) for n in (1, 3, 5, 6)] == [1.0, 0.25, 0.0625, 0.03125]
    for num in (2, 5, 6):
        assert sign_flip([1.0] * num).p == smallest_p(num)


def test_holm_is_the_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx(golden("eval.holm_[.01,.04,.03]"))
    assert holm([0.5, 0.9, 0.5]) == [1.0, 1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
    with pytest.raises(ValueError, match="probabilities"):
        holm([0.1, math.nan])


def test_holm_keeps_false_positives_of_a_family_rare() -> None:
    generator = np.random.default_rng(0)
    families = generator.uniform(size=(2_000, 6))
    assert np.mean([min(holm(each)) <= 0.05 for each in families.tolist()]) == pytest.approx(0.05, abs=0.015)


def test_equivalence_against_a_table_of_student_t() -> None:
    # mean .01, sd .02, n 4: standard error .01, t = 4 and -2 with 3 degrees of freedom
    values = [0.01 - 0.02 * math.sqrt(0.75), 0.01 + 0.02 * math.sqrt(0.75)] * 2
    found = equivalence(values, margin=0.03)
    assert found.p_above == pytest.approx(0.0140, abs=2e-4)
    assert found.p_below == found.p == pytest.approx(0.0697, abs=2e-4)


def test_equivalence_is_rare_at_the_margin_and_silent_without_variation() -> None:
    drawn = np.random.default_rng(1).normal(0.03, 0.02, size=(800, 6))
    assert np.mean([equivalence(each).p <= 0.05 for each in drawn.tolist()]) == pytest.approx(0.05, abs=0.02)
    assert math.isnan(equivalence([0.01, 0.01]).p)
    assert math.isnan(equivalence([0.01]).p)
    with pytest.raises(ValueError, match="margin"):
        equivalence([0.1, 0.2], margin=0.0)


@pytest.mark.parametrize("bad", [[], [math.nan, 1.0], [math.inf]])
def test_what_is_no_difference_is_refused(bad: list[float]) -> None:
    for test in (sign_flip, sign_test, equivalence):
        with pytest.raises(ValueError, match="finite difference"):
            test(bad)

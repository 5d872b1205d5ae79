"""Intervals over problems and paired comparisons: worked examples, whole-number sums, coverage on drawn problems."""

from __future__ import annotations

import math

import numpy as np
import pytest

from maxent_grpo.stats.compare import LEVEL, NUM_RESAMPLES, bootstrap_mean, bootstrap_means, mcnemar, paired_difference


@pytest.mark.parametrize(
    ("b", "c", "p"),
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (0, 1, 1.0),
        (0, 5, 2 / 32),
        (0, 6, 2 / 64),
        (1, 8, 2 * (1 + 9) / 512),
        (10, 2, 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_mcnemar_is_the_exact_binomial_of_the_disagreements(b: int, c: int, p: float) -> None:
    assert mcnemar(b, c) == pytest.approx(p, rel=1e-9)
    assert mcnemar(c, b) == mcnemar(b, c)


def test_mcnemar_equals_the_sum_of_all_outcomes_as_unlikely() -> None:
    for total in range(1, 14):
        for b in range(total + 1):
            shares = [math.comb(total, i) / 2**total for i in range(total + 1)]
            assert mcnemar(b, total - b) == pytest.approx(sum(s for s in shares if s <= shares[b] * (1 + 1e-12)))


def test_mcnemar_does_not_overflow_and_refuses_negative_counts() -> None:
    assert 0 < mcnemar(900, 700) < 1e-6
    assert mcnemar(0, 2000) == 0.0
    assert mcnemar(3000, 3001) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="cannot be negative"):
        mcnemar(-1, 2)


def test_interval_of_a_mean_agrees_with_the_normal_approximation() -> None:
    values = np.random.default_rng(1).random(400)
    interval = bootstrap_mean(values.tolist())
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)
    assert bootstrap_mean(values.tolist()) == interval, "the seed is fixed"


def test_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(60):
        interval = bootstrap_mean((generator.random(80) < 0.3).astype(float).tolist())
        hits += interval.low <= 0.3 <= interval.high
    assert abs(hits / 60 - LEVEL) < 0.1


def test_interval_without_variation_has_no_width_and_one_problem_has_none() -> None:
    same = bootstrap_mean([0.25] * 9)
    assert (same.low, same.mean, same.high) == (0.25, 0.25, 0.25)
    tenth = bootstrap_mean([0.1] * 7)
    assert tenth.low <= tenth.mean <= tenth.high == pytest.approx(0.1)
    alone = bootstrap_mean([1.0])
    assert alone.mean == 1.0
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


def test_interval_is_the_same_whatever_is_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).random(50).tolist()
    whole = bootstrap_mean(values)
    monkeypatch.setattr("maxent_grpo.stats.compare.CHUNK", 1000)
    assert bootstrap_mean(values) == whole


def test_figures_taken_together_have_the_intervals_that_each_has_alone() -> None:
    values = np.random.default_rng(5).random((40, 3))
    for column, interval in zip(values.T, bootstrap_means(values), strict=True):
        alone = bootstrap_mean(column.tolist())
        assert (interval.low, interval.mean, interval.high) == pytest.approx((alone.low, alone.mean, alone.high))


@pytest.mark.parametrize("values", [[], [0.0, math.nan]])
def test_interval_of_what_is_not_a_figure_a_problem_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite figures"):
        bootstrap_mean(values)


def test_paired_difference_is_narrower_than_unpaired_ones_and_finds_a_small_gain() -> None:
    generator = np.random.default_rng(4)
    left = generator.random(200)
    right = left + 0.02 + 0.05 * generator.standard_normal(200)
    found = paired_difference(right.tolist(), left.tolist())
    assert found.mean == pytest.approx(float((right - left).mean()))
    assert 0 < found.low < found.mean < found.high
    assert found.p <= 0.001
    alone = bootstrap_mean(right.tolist())
    assert found.high - found.low < 0.3 * (alone.high - alone.low)
    back = paired_difference(left.tolist(), right.tolist())
    assert (back.mean, back.low, back.high) == pytest.approx((-found.mean, -found.high, -found.low), abs=1e-12)


def test_paired_difference_of_equal_models_is_nothing() -> None:
    found = paired_difference([0.1, 0.5, 0.9], [0.1, 0.5, 0.9])
    assert (found.mean, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_paired_p_value_is_never_zero_and_pairs_must_match() -> None:
    assert paired_difference([0.0] * 20, [1.0] * 20).p == pytest.approx(2 / (NUM_RESAMPLES + 1))
    with pytest.raises(ValueError, match="are not pairs"):
        paired_difference([0.1], [0.1, 0.2])

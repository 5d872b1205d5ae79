"""Seeds as what replicates: worked examples, a bootstrap written out, and how often intervals hold what they should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.golden import golden

from maxent_grpo.stats.compare import CHUNK
from maxent_grpo.stats.replication import iqm, probability_of_improvement, stratified_iqm, two_level_means

MATRIX = np.array([[0.1, 0.5, 0.9], [0.2, 0.6, 0.8], [0.3, 0.4, 1.0], [0.0, 0.7, 0.7]])


def test_iqm_is_the_worked_example() -> None:
    assert iqm(MATRIX) == pytest.approx(golden("eval.iqm_4x3"))
    assert stratified_iqm(MATRIX.T.tolist()).mean == pytest.approx(golden("eval.iqm_4x3"))
    assert iqm([1.0, 2.0, 9.0]) == 4.0, "of three nothing is cut"
    assert iqm([-100.0, 1.0, 2.0, 900.0]) == 1.5


def test_two_levels_are_drawn_one_within_the_other() -> None:
    """Against the bootstrap written out, seed by seed and problem by problem."""
    values = np.random.default_rng(2).normal(size=(3, 4)) + np.array([[0.0], [1.0], [3.0]])
    generator = np.random.default_rng(11)
    means = [
        np.mean([values[s, generator.integers(4)] for s in generator.integers(3, size=3) for _ in range(4)])
        for _ in range(4_000)
    ]
    found = two_level_means(values[:, :, None])[0]
    assert found.mean == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.08)


def test_problems_do_not_stand_in_for_seeds() -> None:
    """A thousand problems that follow their seed narrow nothing."""
    few, many = (np.repeat([[0.1], [0.5], [0.6]], num, axis=1)[:, :, None] for num in (1, 1_000))
    a, b = two_level_means(few)[0], two_level_means(many, num_resamples=2_000)[0]
    assert (a.low, a.high) == pytest.approx((b.low, b.high), abs=0.04)
    assert a.high - a.low > 0.3


def test_figures_of_one_call_see_the_same_draws_also_in_parts() -> None:
    values = np.random.default_rng(0).normal(size=(4, 120, 1))
    assert len(values[0]) * 4 * 10_000 > CHUNK, "the draws are made in parts"
    both = two_level_means(np.concatenate([values, -values], axis=2))
    assert both[0].low == pytest.approx(-both[1].high)
    assert two_level_means(values) == two_level_means(values), "and are seeded"
    assert both[0].low == pytest.approx(two_level_means(values)[0].low)


def test_one_seed_has_no_interval() -> None:
    assert math.isnan(two_level_means(np.ones((1, 50, 1)))[0].low)
    assert math.isnan(stratified_iqm([[0.5, 0.6], [0.7]]).low)
    assert math.isnan(probability_of_improvement([[0.5]], [[0.4, 0.3]]).high)


def test_intervals_hold_the_mean_about_as_often_as_they_say() -> None:
    """With eight seeds of a spread of their own; percentile intervals of few seeds fall a little short, and only a little."""
    generator = np.random.default_rng(5)
    held = 0
    for _ in range(150):
        values = generator.normal(0.0, 0.3, size=(8, 1)) + generator.normal(0.0, 0.5, size=(8, 6))
        found = two_level_means(values[:, :, None], num_resamples=400)[0]
        held += found.low <= 0.0 <= found.high
    assert 0.85 <= held / 150 <= 1.0


def test_probability_of_improvement_counts_pairs_and_halves_ties() -> None:
    assert probability_of_improvement([[3.0, 1.0]], [[2.0, 1.0]]).mean == (1 + 1 + 0 + 0.5) / 4
    assert probability_of_improvement([[1.0, 1.0]], [[1.0, 1.0]]).mean == 0.5
    assert probability_of_improvement([[0.5, 0.1 + 0.2]], [[0.5, 0.3]]).mean == 0.5, "equal but for the last digit"
    two_tasks = probability_of_improvement([[2.0, 2.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0, 1.0]])
    assert two_tasks.mean == 0.5, "tasks count alike, however many runs they have"
    apart = probability_of_improvement([[5.0, 6.0, 7.0]], [[1.0, 2.0, 3.0]])
    assert (apart.mean, apart.low, apart.high) == (1.0, 1.0, 1.0)


def test_strata_keep_every_task_in_every_resample() -> None:
    """Two tasks far apart: were they drawn together, the mean of the resamples would jump between them."""
    found = stratified_iqm([[0.1, 0.1, 0.1, 0.1], [0.9, 0.9, 0.9, 0.9]])
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize("bad", [np.ones((2, 3)), np.ones((2, 0, 1)), np.full((2, 2, 1), np.nan)])
def test_what_are_no_figures_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="finite figures"):
        two_level_means(bad)
    with pytest.raises(ValueError, match="level"):
        two_level_means(np.ones((2, 2, 1)), level=1.0)
    with pytest.raises(ValueError, match="tasks"):
        probability_of_improvement([[1.0]], [])
    with pytest.raises(ValueError, match="finite"):
        iqm([math.inf])

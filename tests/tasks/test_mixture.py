"""The order of a mixture's rows: exact proportions, every row as often as any other, and a function of seed and epoch alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maxent_grpo.tasks.mixture import Mixture, apportioned, mixture_order

SIZES, WEIGHTS = (5, 40, 13), (1.0, 2.0, 0.5)


def source_of(place: int) -> int:
    return int(np.searchsorted(np.cumsum(SIZES), place, side="right"))


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(1, 30), st.floats(1e-3, 1e3)), min_size=1, max_size=5),
    num_rows=st.integers(0, 120),
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 50),
    shuffle=st.booleans(),
)
def test_an_epoch_takes_each_sources_share_by_largest_remainder(
    parts: list[tuple[int, float]], num_rows: int, seed: int, epoch: int, shuffle: bool
) -> None:
    sizes, weights = zip(*parts, strict=True)
    order = mixture_order(sizes, weights, num_rows, seed, epoch, shuffle=shuffle)
    borders = np.concatenate([[0], np.cumsum(sizes)])
    counts = np.histogram(order, bins=borders)[0].tolist()
    assert len(order) == num_rows
    assert counts == apportioned(num_rows, weights)
    exact = [num_rows * weight / sum(weights) for weight in weights]
    assert all(abs(count - share) < 1 for count, share in zip(counts, exact, strict=True))


def test_shares_are_whole_and_add_up() -> None:
    assert apportioned(10, [1, 1, 1]) == [4, 3, 3]
    assert apportioned(10, [7, 2, 1]) == [7, 2, 1]
    assert apportioned(7, [0.5, 0.3, 0.2]) == [4, 2, 1]
    assert apportioned(3, [1e300, 1e300]) == [2, 1]
    assert apportioned(0, [1, 2]) == [0, 0]


def test_over_the_epochs_each_row_of_a_source_comes_equally_often() -> None:
    seen: Counter[int] = Counter()
    for epoch in range(9):
        seen.update(mixture_order(SIZES, WEIGHTS, 58, seed=3, epoch=epoch).tolist())
        for source in range(3):
            counts = [seen[place] for place in range(sum(SIZES)) if source_of(place) == source]
            assert max(counts) - min(counts) <= 1, (epoch, source)


def test_any_stretch_has_about_the_mixtures_proportions_and_a_repeated_row_comes_after_about_one_pass() -> None:
    for epoch in range(5):
        order = mixture_order(SIZES, WEIGHTS, 70, seed=0, epoch=epoch).tolist()
        for start in range(0, 63, 7):
            counts = Counter(source_of(place) for place in order[start : start + 7])
            assert abs(counts[0] - 2) <= 2
            assert abs(counts[1] - 4) <= 2
    drawn = mixture_order((10,), (1.0,), 30, seed=0, epoch=0).tolist()
    assert [sorted(drawn[start : start + 10]) for start in (0, 10, 20)] == [list(range(10))] * 3


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    first = mixture_order(SIZES, WEIGHTS, 58, seed=1, epoch=4)
    np.random.seed(5)
    assert np.array_equal(first, mixture_order(SIZES, [10 * weight for weight in WEIGHTS], 58, seed=1, epoch=4))
    others = [mixture_order(SIZES, WEIGHTS, 58, seed, epoch) for seed, epoch in ((1, 5), (2, 4), (4, 1))]
    assert not any(np.array_equal(first, other) for other in others)
    assert mixture_order((3, 4), (1, 2), 6, seed=0, epoch=0).tolist() == EXPECTED


EXPECTED = [2, 4, 3, 5, 1, 6]


def test_without_shuffling_each_source_keeps_its_order_and_goes_on_where_it_stopped() -> None:
    epochs = [mixture_order((3, 4), (1, 1), 4, seed=0, epoch=epoch, shuffle=False).tolist() for epoch in range(3)]
    assert epochs == [[0, 3, 1, 4], [2, 5, 0, 6], [1, 3, 2, 4]]


def test_a_tasks_mixture_orders_its_rows() -> None:
    mixture = Mixture(("a", "b", "c"), SIZES, WEIGHTS, 58)
    assert mixture.order(1, 2).tolist() == mixture_order(SIZES, WEIGHTS, 58, 1, 2).tolist()
    assert mixture.order(1, 2, shuffle=False).tolist() != mixture.order(1, 2).tolist()

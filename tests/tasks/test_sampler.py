"""The order of training rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxent_grpo.tasks.sampler import EpochSampler

EXPECTED = [[5, 0, 6, 1, 7, 2, 4, 3], [2, 0, 4, 1, 7, 5, 3, 6]]


@given(num_rows=st.integers(1, 50), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 1000), data=st.data())
def test_a_position_continues_the_straight_order(num_rows: int, seed: int, epoch: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, num_rows))
    straight, resumed = EpochSampler(num_rows, seed=seed), EpochSampler(num_rows, seed=seed)
    straight.set_position(epoch, 0)
    resumed.set_position(epoch, offset)
    assert list(resumed) == list(straight)[offset:]
    assert sorted(straight) == list(range(num_rows))
    assert len(resumed) == num_rows


def test_order_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    sampler = EpochSampler(20, seed=3)
    first = list(sampler)
    torch.manual_seed(1)
    assert list(sampler) == first
    assert sampler.order(1) != first
    assert EpochSampler(20, seed=4).order(0) != first
    # epoch 1 of seed 0 is not epoch 0 of seed 1
    assert EpochSampler(20, seed=0).order(1) != EpochSampler(20, seed=1).order(0)


def test_reading_the_order_touches_no_global_random_state() -> None:
    before = torch.get_rng_state()
    list(EpochSampler(20, seed=3))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_order_of_seed_0_is_this_one() -> None:
    sampler = EpochSampler(8, seed=0)
    assert [sampler.order(epoch) for epoch in (0, 1)] == EXPECTED


def test_without_shuffling_rows_keep_their_order() -> None:
    sampler = EpochSampler(5, seed=0, shuffle=False)
    sampler.set_position(7, 2)
    assert list(sampler) == [2, 3, 4]


def test_a_loader_yields_the_rest_of_a_batched_epoch() -> None:
    sampler = EpochSampler(10, seed=1)
    loader = torch.utils.data.DataLoader(range(10), batch_size=4, sampler=sampler)  # pyright: ignore[reportArgumentType]
    whole = [batch.tolist() for batch in loader]
    sampler.set_position(0, 4)
    assert [batch.tolist() for batch in loader] == whole[1:]
    assert len(loader) == 3


@pytest.mark.parametrize(("epoch", "offset"), [(-1, 0), (0, -1), (0, 6)])
def test_a_position_outside_an_epoch_is_refused(epoch: int, offset: int) -> None:
    with pytest.raises(ValueError, match="no position"):
        EpochSampler(5, seed=0).set_position(epoch, offset)


@pytest.mark.parametrize(("num_rows", "seed"), [(0, 0), (3, -1)])
def test_a_sampler_without_rows_or_with_a_negative_seed_is_refused(num_rows: int, seed: int) -> None:
    with pytest.raises(ValueError, match="got"):
        EpochSampler(num_rows, seed=seed)

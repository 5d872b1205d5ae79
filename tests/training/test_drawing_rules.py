"""Which groups are kept, how many prompts are drawn for them, and how rows come from the stream."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.properties import quick

from maxent_grpo.objective.weights import informative_groups
from maxent_grpo.tasks.sampler import EpochSampler
from maxent_grpo.training.dynamic_sampling import first_places, portions_of, prompts_to_draw
from maxent_grpo.training.row_stream import DataPosition, RowStream


@pytest.mark.parametrize(
    ("utilities", "kept"),
    [
        ([1.0, 0.0, 0.0, 0.0], True),
        ([1.0, 1.0, 1.0, 0.0], True),
        ([0.0, 0.0, 0.0, 0.0], False),
        ([1.0, 1.0, 1.0, 1.0], False),
        ([0.3, 0.3 + 1e-12, 0.3, 0.3], False),
        ([0.3, 0.31, 0.3, 0.3], True),
        ([1.0, math.nan, 1.0, 1.0], False),
        ([1.0, math.nan, 0.0, math.nan], True),
        ([1.0, math.nan, math.nan, math.nan], False),
        ([math.nan] * 4, False),
    ],
)
def test_a_group_is_kept_when_its_valid_utilities_differ(utilities: list[float], kept: bool) -> None:
    group = torch.tensor([utilities], dtype=torch.float64)
    assert informative_groups(group, ~group.isnan()).tolist() == [kept]


@quick
@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6))
def test_with_right_and_wrong_answers_kept_means_some_of_both(answers: list[list[bool]]) -> None:
    utilities = torch.tensor(answers, dtype=torch.float64)
    expected = [0 < sum(group) < len(group) for group in answers]
    assert informative_groups(utilities, torch.ones_like(utilities, dtype=torch.bool)).tolist() == expected


def test_the_next_draw_follows_the_rate_at_which_prompts_were_kept() -> None:
    assert prompts_to_draw(16, drawn=0, informative=0, rollout=16) == 16
    assert prompts_to_draw(3, drawn=0, informative=0, rollout=16) == 3
    assert prompts_to_draw(4, drawn=16, informative=12, rollout=16) == 6, "ceil(4 / 0.75)"
    assert prompts_to_draw(8, drawn=16, informative=8, rollout=16) == 16
    assert prompts_to_draw(8, drawn=16, informative=1, rollout=16) == 16, "no more than a rollout"
    assert prompts_to_draw(8, drawn=16, informative=0, rollout=16) == 16


@quick
@given(
    places=st.lists(st.integers(0, 99), min_size=1, max_size=20, unique=True),
    ranks=st.integers(1, 3),
    rollout=st.integers(1, 12),
    step=st.integers(1, 5),
)
def test_processes_share_the_oldest_groups_in_equally_many_steps(
    places: list[int], ranks: int, rollout: int, step: int
) -> None:
    parts = [sorted(places)[rank::ranks] for rank in range(ranks)]
    chosen = first_places(parts, rollout)
    assert chosen == sorted(places)[:rollout]
    own = [[place for place in part if place in chosen] for part in parts]
    portions = [portions_of(part, chosen, step) for part in own]
    assert {len(part) for part in portions} == {math.ceil(len(chosen) / step)}
    for number in range(len(portions[0])):
        together = [place for part, cuts in zip(own, portions, strict=True) for place in part[cuts[number].slice]]
        assert sorted(together) == chosen[number * step : (number + 1) * step]
    for part, cuts in zip(own, portions, strict=True):
        assert [cuts[0].first, *(cut.last for cut in cuts)][-1] == len(part)


def stream_at(position: DataPosition) -> tuple[RowStream, EpochSampler]:
    """Ten rows in an order of their own, loaded three at a time."""
    sampler = EpochSampler(10, seed=3)

    class Loader:
        def __iter__(self) -> Any:
            rows = [{"row_id": str(index)} for index in sampler]
            yield from (rows[at : at + 3] for at in range(0, len(rows), 3))

    return RowStream(Loader(), sampler, position, prompts_per_step=2), sampler


@quick
@given(st.lists(st.integers(1, 13), min_size=1, max_size=8), st.integers(0, 7))
def test_a_stream_is_the_same_whatever_the_draws_and_wherever_it_is_resumed(counts: list[int], stop: int) -> None:
    stream, sampler = stream_at(DataPosition())
    rows: list[str] = []
    for number, count in enumerate(counts):
        if number == stop:
            position = DataPosition()
            position.load_state_dict(stream.position.state_dict())
            stream, sampler = stream_at(position)
        assert stream.num_drawn == len(rows)
        info = stream.draw(count, across_epochs=True)
        assert (info.epoch, info.step_in_epoch) == (len(rows) // 10, len(rows) % 10 // 2)
        rows += [row["row_id"] for row in info.batch]
    order = [str(index) for epoch in range(12) for index in sampler.order(epoch)]
    assert rows == order[: sum(counts)]


def test_a_draw_that_may_not_cross_an_epoch_ends_with_it() -> None:
    stream, _ = stream_at(DataPosition())
    draws = [stream.draw(4) for _ in range(4)]
    assert [len(info.batch) for info in draws] == [4, 4, 2, 4]
    assert [(info.epoch, info.step_in_epoch) for info in draws] == [(0, 0), (0, 2), (0, 4), (1, 0)]

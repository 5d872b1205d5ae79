"""Rows that are passed over because they are too long: counted, and of no consequence for where a stream continues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from maxent_grpo.errors import DataError
from maxent_grpo.tasks.sampler import EpochSampler
from maxent_grpo.training.row_stream import DataPosition, RowStream

NUM, LONG = 10, {1, 4, 5, 6, 9}


class Loader:
    """The rows in the sampler's order, in batches that have nothing to do with the draws."""

    def __init__(self, sampler: EpochSampler, long: set[int]) -> None:
        self._sampler, self._long = sampler, long

    def __iter__(self) -> Iterator[list[dict[str, Any] | None]]:
        for number in self._sampler:
            yield [None if number in self._long else {"row_id": number}]


def stream(position: DataPosition, long: set[int] = LONG, *, shuffle: bool = False) -> RowStream:
    sampler = EpochSampler(NUM, seed=3, shuffle=shuffle)
    return RowStream(Loader(sampler, long), sampler, position, prompts_per_step=2)


def drawn(from_stream: RowStream, *counts: int, across_epochs: bool = False) -> list[list[int]]:
    return [[row["row_id"] for row in from_stream.draw(n, across_epochs=across_epochs).batch] for n in counts]


def test_a_draw_is_filled_with_the_rows_after_those_passed_over() -> None:
    rows = stream(DataPosition())
    assert drawn(rows, 2, 2, 2, 2) == [[0, 2], [3, 7], [8], [0, 2]]
    assert (rows.position.epoch, rows.position.offset, rows.position.num_dropped) == (1, 3, 6)
    assert rows.num_drawn == 13


def test_a_draw_goes_on_into_the_next_epoch_where_nothing_is_left_of_this_one() -> None:
    rows = stream(DataPosition(0, 9))
    info = rows.draw(2)
    assert ([row["row_id"] for row in info.batch], info.epoch, info.step_in_epoch) == ([0, 2], 1, 0)
    assert rows.position.num_dropped == 2


def test_draws_across_epochs_are_full() -> None:
    assert drawn(stream(DataPosition()), 4, 4, 4, across_epochs=True) == [[0, 2, 3, 7], [8, 0, 2, 3], [7, 8, 0, 2]]


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_position_continues_the_stream_whatever_was_passed_over(stop: int) -> None:
    straight = stream(DataPosition(), shuffle=True)
    whole = drawn(straight, *[2] * 7)
    first = stream(DataPosition(), shuffle=True)
    before = drawn(first, *[2] * stop)
    resumed = DataPosition()
    resumed.load_state_dict(first.position.state_dict())
    second = stream(resumed, shuffle=True)
    assert before + drawn(second, *[2] * (7 - stop)) == whole
    assert second.position == straight.position


def test_a_position_saved_before_rows_were_passed_over_can_be_read() -> None:
    position = DataPosition(1, 2, 3)
    position.load_state_dict({"epoch": 0, "offset": 4})
    assert position == DataPosition(0, 4, 0)


@pytest.mark.parametrize("across_epochs", [True, False])
def test_a_stream_of_long_prompts_alone_ends_with_an_error(across_epochs: bool) -> None:
    with pytest.raises(DataError, match="all of the last 10 training prompts are longer than"):
        stream(DataPosition(), set(range(NUM))).draw(1, across_epochs=across_epochs)

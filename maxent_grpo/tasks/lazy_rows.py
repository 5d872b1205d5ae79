"""Rows of a long data set, each rendered when it is asked for; the ones used last are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from maxent_grpo.tasks.base import IndexedRows, TaskRow

KEPT_ROWS = 4096
"""Rendered rows that are kept."""
SAMPLED_ROWS = 1000
"""Rows that stand for a long data set where all cannot be looked at."""


class Rendered(Protocol):
    """What a renderer makes of a row."""

    @property
    def row(self) -> dict[str, Any] | None:
        """The row ready for the loop; None where it is dropped."""
        ...


class Renderer(Protocol):
    """Writes the prompt of a row."""

    def __call__(self, task_row: TaskRow, /) -> Rendered:
        """The row with its prompt."""
        ...


def sample_places(num: int, most: int = SAMPLED_ROWS) -> list[int]:
    """At most ``most`` places of ``num``, evenly spread; the same for every run."""
    size = min(num, most)
    return [index * num // size for index in range(size)]


class LazyRows(Sequence[dict[str, Any] | None]):
    """The rendered rows of a sequence: row n is None where the length limit drops it.

    Rows come from the sequence whenever they are not among the last ``keep`` that were used, so that only those, and what the
    sequence itself holds, are in memory. A sequence without ``place_of`` gets an index of its ids at the first look-up.
    """

    def __init__(self, task_rows: Sequence[TaskRow], renderer: Renderer, *, keep: int = KEPT_ROWS) -> None:
        self._task_rows, self._render, self._keep = task_rows, renderer, keep
        self._rendered: OrderedDict[int, dict[str, Any] | None] = OrderedDict()
        self._places: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._task_rows)

    def __getitem__(self, index: int) -> dict[str, Any] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if index in self._rendered:
            self._rendered.move_to_end(index)
            return self._rendered[index]
        row = self._render(self._task_rows[index]).row
        self._rendered[index] = row
        if len(self._rendered) > self._keep:
            self._rendered.popitem(last=False)
        return row

    def place_of(self, row_id: str) -> int:
        """The place of the row with this id; raises KeyError if there is none."""
        if isinstance(self._task_rows, IndexedRows):
            return self._task_rows.place_of(row_id)
        if self._places is None:
            self._places = {row.row_id: place for place, row in enumerate(self._task_rows)}
        return self._places[row_id]

    def by_id(self) -> Mapping[str, Mapping[str, Any]]:
        """The rows by row_id; a dropped one is not there."""
        return _RowsById(self)


class _RowsById(Mapping[str, Mapping[str, Any]]):
    """Looks every row up when it is asked for."""

    def __init__(self, rows: LazyRows) -> None:
        self._rows = rows

    def __getitem__(self, row_id: str) -> Mapping[str, Any]:
        row = self._rows[self._rows.place_of(row_id)]
        if row is None:
            raise KeyError(row_id)
        return row

    def __iter__(self) -> Iterator[str]:
        return (row["row_id"] for row in self._rows if row is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

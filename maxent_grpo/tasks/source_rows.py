"""A source's records as the rows of a task: mapped when they are asked for, and found again by their identity."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import overload

import numpy as np
import numpy.typing as npt

from maxent_grpo.errors import DataError
from maxent_grpo.tasks.base import TaskRow
from maxent_grpo.tasks.records import Records
from maxent_grpo.tasks.row_mapping import BadRow, RowMapping

PART_COLUMN = "mixture_part"
"""Column that says which source of a mixture a row is of."""


class _Rows(Sequence[TaskRow]):
    """Rows that are made one by one when they are asked for."""

    @overload
    def __getitem__(self, index: int) -> TaskRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[TaskRow]: ...

    def __getitem__(self, index: int | slice) -> TaskRow | list[TaskRow]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return self._row(index)

    @abstractmethod
    def _row(self, index: int) -> TaskRow: ...


class SourceRows(_Rows):
    """Some of a table's records as problems: 8 bytes a row are kept, and a row is read whenever it is asked for.

    ``row_id`` is ``<prefix>-<place>-<hash>``: where the record stands (its line; ``file.line`` where there are several files)
    and a hash of what its question and answer columns hold. Equal records at two places are two rows, a changed record is
    another row, and ``place_of`` finds a row from its identity without a table of identities.
    """

    def __init__(
        self,
        records: Records,
        mapping: RowMapping,
        indices: npt.NDArray[np.int64],
        prefix: str,
        source: str | None = None,
    ) -> None:
        """``indices`` are those of the records, rising; ``source`` is what ``PART_COLUMN`` says, None for no such column."""
        self._records, self._mapping, self._indices = records, mapping, indices
        self._prefix, self._source = prefix, source

    def __len__(self) -> int:
        return len(self._indices)

    def _row(self, index: int) -> TaskRow:
        at = int(self._indices[index])
        try:
            row = self._mapping.row(self._records.record(at), self._prefix + self._place(at), self._records.names)
        except BadRow as why:
            raise DataError(f"{self._records.where(at)}: {why}") from why
        if self._source is not None:
            row.columns[PART_COLUMN] = self._source
        return row

    def place_of(self, row_id: str) -> int:
        """The position of a row, in logarithmic time and with one reading of the row.

        Raises:
            KeyError: there is no such row.
        """
        position = self._position(row_id)
        if position is None or self[position].row_id != row_id:
            raise KeyError(row_id)
        return position

    def where(self, position: int) -> str:
        """Where the record of a row stands, as `train.jsonl, line 17`."""
        return self._records.where(int(self._indices[position]))

    def _place(self, at: int) -> str:
        file, line = self._records.place(at)
        return f"-{line}" if self._records.num_files == 1 else f"-{file + 1}.{line}"

    def _position(self, row_id: str) -> int | None:
        prefix, place, _ = [*row_id.rsplit("-", 2), "", ""][:3]
        file, dot, line = place.rpartition(".")
        if prefix != self._prefix or not line.isdecimal() or bool(dot) != (self._records.num_files > 1):
            return None
        at = self._records.find(int(file) - 1 if file.isdecimal() else 0, int(line))
        position = None if at is None else int(np.searchsorted(self._indices, at))
        return position if position is not None and position < len(self) and self._indices[position] == at else None


class JoinedRows(_Rows):
    """The rows of several sources, laid end to end."""

    def __init__(self, parts: Sequence[SourceRows]) -> None:
        self._parts = parts
        self._ends = list(accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def _row(self, index: int) -> TaskRow:
        number, inside = self._locate(index)
        return self._parts[number][inside]

    def place_of(self, row_id: str) -> int:
        """The position of a row.

        Raises:
            KeyError: there is no such row.
        """
        for part, end in zip(self._parts, self._ends, strict=True):
            try:
                return end - len(part) + part.place_of(row_id)
            except KeyError:
                continue
        raise KeyError(row_id)

    def where(self, position: int) -> str:
        """Where the record of a row stands."""
        number, inside = self._locate(position)
        return self._parts[number].where(inside)

    def _locate(self, index: int) -> tuple[int, int]:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(index)
        number = bisect_right(self._ends, position)
        return number, position - (self._ends[number - 1] if number else 0)

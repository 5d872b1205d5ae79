"""What the readers of tables have in common: records at random places, and an account of those that cannot be used."""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from maxent_grpo.errors import DataError
from maxent_grpo.training.types.choices import OnBadRow

logger = logging.getLogger(__name__)

MOST_NAMED = 10
"""Broken records that a message names; the rest are counted."""

Check = Callable[[Mapping[str, Any]], str]
"""Why a record cannot be used; empty if it can."""


class TableFile(Protocol):
    """The usable records of one file (or data set), each read when it is asked for."""

    @property
    def title(self) -> str:
        """The file, as messages name it."""
        ...

    @property
    def digest(self) -> str:
        """A hash of its content."""
        ...

    @property
    def unit(self) -> str:
        """What places in it count: `line` or `row`."""
        ...

    def __len__(self) -> int: ...

    def record(self, index: int) -> dict[str, Any]:
        """The usable record number ``index``, from 0."""
        ...

    def line(self, index: int) -> int:
        """Its line (or row) in the file, from 1; grows with ``index``."""
        ...

    def find(self, line: int) -> int | None:
        """The index of the record at a line, in logarithmic time; None if no usable one begins there."""
        ...


class Records:
    """The usable records of several files, one file after the other, as one table."""

    def __init__(self, files: Sequence[TableFile], names: Sequence[str]) -> None:
        self.names = tuple(names)
        """The columns of the whole table."""
        self.num_files = len(files)
        self.digest = hashlib.sha256(" ".join(file.digest for file in files).encode()).hexdigest()
        """A hash of the content of all files, whatever their names."""
        self._files = files
        self._ends = list(accumulate(len(file) for file in files))

    def __len__(self) -> int:
        return self._ends[-1]

    def record(self, index: int) -> dict[str, Any]:
        """The record at ``index``, from 0."""
        number, inside = self._locate(index)
        return self._files[number].record(inside)

    def place(self, index: int) -> tuple[int, int]:
        """Number of its file, from 0, and line in it, from 1; places grow with the index."""
        number, inside = self._locate(index)
        return number, self._files[number].line(inside)

    def find(self, file: int, line: int) -> int | None:
        """The index of the record at a place, in logarithmic time; None if no usable record stands there."""
        inside = self._files[file].find(line) if 0 <= file < self.num_files else None
        return None if inside is None else inside + (self._ends[file - 1] if file else 0)

    def where(self, index: int) -> str:
        """The place in words, as `train.jsonl, line 17`."""
        number, inside = self._locate(index)
        file = self._files[number]
        return f"{file.title}, {file.unit} {file.line(inside)}"

    def _locate(self, index: int) -> tuple[int, int]:
        number = bisect_right(self._ends, index)
        return number, index - (self._ends[number - 1] if number else 0)


@dataclass
class Account:
    """The broken records found while a source is read for the first time."""

    name: str
    """The source, as messages name it."""
    num_bad: int = 0
    named: list[str] = field(default_factory=list[str])

    def add(self, where: str, why: str) -> None:
        """Count a broken record, and name it if few have been named."""
        self.num_bad += 1
        if len(self.named) < MOST_NAMED:
            self.named.append(f"{where}: {why}")

    def settle(self, num_good: int, policy: OnBadRow) -> None:
        """Refuse the source, or say what is left out of it.

        Raises:
            DataError: a record is broken and ``policy`` is stop, or none is left.
        """
        if self.num_bad and (policy is OnBadRow.stop or num_good == 0):
            raise DataError(f"{self._said('cannot be used')}\n{self._advice(num_good)}")
        if num_good == 0:
            raise DataError(f"{self.name} holds no records: there is nothing to learn from; name other data")
        if self.num_bad:
            logger.warning("%s", self._said("left out (data.on_bad_row=skip)"))

    def _said(self, what: str) -> str:
        rest = self.num_bad - len(self.named)
        lines = [f"  {line}" for line in self.named] + ([f"  and {rest} more"] if rest else [])
        count = f"{self.num_bad} record" + ("s" if self.num_bad > 1 else "")
        return "\n".join([f"{self.name}: {count} {what}:", *lines])

    def _advice(self, num_good: int) -> str:
        if num_good == 0:
            return "No record is left: check data.prompt_column and data.answer_column, or name other data."
        return f"Correct them, or leave them out with data.on_bad_row=skip ({num_good} are left)."


def changed(path: Path) -> DataError:
    """The error for a file that is no longer what was read at the start."""
    return DataError(
        f"{path} has changed since it was read at the start, so its rows no longer stand where they did: start the run anew, "
        f"and leave the file alone while it lasts"
    )

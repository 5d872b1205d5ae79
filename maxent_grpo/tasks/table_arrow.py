"""Parquet files and data sets of the `datasets` library as records at random places, through memory-mapped Arrow tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from maxent_grpo.errors import DataError
from maxent_grpo.tasks.kept_file import kept_file
from maxent_grpo.tasks.records import Account, Check

if TYPE_CHECKING:
    from datasets import Dataset

BATCH = 4096
"""Rows of one batch of an unpacked table, and of one portion of the first reading."""


class UnpackedParquet:
    """A parquet file, whose compressed pages allow no random access, unpacked once into a memory-mapped Arrow file."""

    def __init__(self, path: Path, cache_dir: str) -> None:
        status = path.stat()
        made_from = [str(path.resolve()), status.st_size, status.st_mtime_ns]
        kept = kept_file(cache_dir, "table", made_from, ".arrow", partial(_unpack, path))
        self.path = kept
        self.title = str(path)
        self._open()

    def _open(self) -> None:
        self._file = pa.ipc.open_file(pa.memory_map(str(self.path)))
        sizes = [self._file.get_batch(number).num_rows for number in range(self._file.num_record_batches)]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self.names: list[str] = list(self._file.schema.names)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "title": self.title}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def record(self, row: int) -> dict[str, Any]:
        """One row, from 0."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        first = int(self._ends[number - 1]) if number else 0
        return self._file.get_batch(number).slice(row - first, 1).to_pylist()[0]

    def scan(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Every row, in order, with these columns only."""
        for number in range(self._file.num_record_batches):
            yield from self._file.get_batch(number).select(list(names)).to_pylist()


class StoredDataset:
    """A data set of the `datasets` library, its columns as Arrow has them: nothing is decoded."""

    def __init__(self, dataset: Dataset, title: str) -> None:
        self._rows = dataset.with_format("arrow")
        self.title = title
        self.names: list[str] = list(dataset.column_names)

    def __len__(self) -> int:
        return len(self._rows)

    def record(self, row: int) -> dict[str, Any]:
        """One row, from 0."""
        return cast(pa.Table, self._rows[row : row + 1]).to_pylist()[0]

    def scan(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Every row, in order, with these columns only."""
        chosen = self._rows.select_columns(list(names))
        for start in range(0, len(chosen), BATCH):
            yield from cast(pa.Table, chosen[start : start + BATCH]).to_pylist()


ArrowTable = UnpackedParquet | StoredDataset


class ArrowFile:
    """The usable rows of an Arrow table."""

    unit = "row"

    def __init__(self, table: ArrowTable, rows: npt.NDArray[np.int64] | None, digest: str) -> None:
        """``rows`` are the usable ones, None where all are; ``digest`` is a hash of the table's content."""
        self.title, self.digest = table.title, digest
        self._table, self._rows = table, rows

    def __len__(self) -> int:
        return len(self._table) if self._rows is None else len(self._rows)

    def record(self, index: int) -> dict[str, Any]:
        """One usable row."""
        return self._table.record(self.line(index) - 1)

    def line(self, index: int) -> int:
        """Its number in the table, from 1."""
        return (index if self._rows is None else int(self._rows[index])) + 1

    def find(self, line: int) -> int | None:
        """The index of a row of the table."""
        if self._rows is None:
            return line - 1 if 1 <= line <= len(self) else None
        index = int(np.searchsorted(self._rows, line - 1))
        return index if index < len(self) and self.line(index) == line else None


def read_arrow_table(table: ArrowTable, names: Sequence[str], check: Check, account: Account) -> ArrowFile:
    """Read the columns ``names``, of question and answer, once: the usable rows; the others go to ``account``."""
    bad: list[int] = []
    content = hashlib.blake2b()
    for row, record in enumerate(table.scan(names)):
        content.update(repr(record).encode("utf-8", "surrogatepass"))
        why = check(record)
        if why:
            account.add(f"{table.title}, row {row + 1}", why)
            bad.append(row)
    good = np.delete(np.arange(len(table), dtype=np.int64), bad) if bad else None
    return ArrowFile(table, good, content.hexdigest())


def open_parquet(path: Path, cache_dir: str) -> UnpackedParquet:
    """A parquet file at random places.

    Raises:
        DataError: it is no parquet file, damaged, or cannot be unpacked into ``cache_dir``.
    """
    try:
        return UnpackedParquet(path, cache_dir)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet ({' '.join(str(error).split())[:200]})") from error


def _unpack(path: Path, target: Path) -> None:
    with pq.ParquetFile(path, memory_map=True) as source:
        schema = _without_dictionaries(source.schema_arrow)
        with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in source.iter_batches(batch_size=BATCH):
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """The schema with each category column as what its categories are: an Arrow file takes one dictionary, parquet many."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema
    ]
    return pa.schema(fields)

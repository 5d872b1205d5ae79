"""jsonl, csv and tsv files as records at random places.

A file is read once from start to end, which checks every record and notes where it begins: 16 bytes a record are kept, and
nothing of its content. A record is read again from its place when it is asked for.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from maxent_grpo.config.table_files import TEXT_TABLES
from maxent_grpo.errors import DataError
from maxent_grpo.tasks.records import Account, Check, changed

BOM = b"\xef\xbb\xbf"
OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class Scanned(NamedTuple):
    """One record as the first reading finds it."""

    start: int
    length: int
    line: int
    record: dict[str, Any] | None
    why: str
    """Why there is no record; empty if there is."""


class TextFile:
    """One file and where its usable records stand."""

    unit = "line"

    def __init__(self, path: Path, stamp: tuple[int, int], digest: str) -> None:
        """``stamp`` is the file's size and time of change when it was read, ``digest`` a hash of its content."""
        self.path, self.stamp, self.digest, self.title = path, stamp, digest, str(path)
        self.delimiter = TEXT_TABLES[path.suffix.lower()]
        self.fields: list[str] = []  # the header of a csv file
        self.starts, self.lengths, self.lines = array("q"), array("I"), array("I")
        self._handle: int | None = None

    def __del__(self) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}  # an open file belongs to its process

    def __len__(self) -> int:
        return len(self.starts)

    def line(self, index: int) -> int:
        """The line on which a record begins."""
        return self.lines[index]

    def find(self, line: int) -> int | None:
        """The index of the record that begins on a line."""
        index = bisect_left(self.lines, line)
        return index if index < len(self.lines) and self.lines[index] == line else None

    def record(self, index: int) -> dict[str, Any]:
        """Read one record.

        Raises:
            DataError: the file has changed.
        """
        if self._handle is None:
            self._handle = os.open(self.path, os.O_RDONLY)
        if _stamp(os.fstat(self._handle)) != self.stamp:
            raise changed(self.path)
        text = os.pread(self._handle, self.lengths[index], self.starts[index]).decode("utf-8")
        if not self.delimiter:
            return json.loads(text)
        values = next(csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter, strict=True))
        return dict(zip(self.fields, values, strict=True))


def read_text_file(path: Path, check: Check, account: Account, seen: dict[str, Any]) -> TextFile:
    """Read a file once: note its usable records, add the others to ``account``, the columns to ``seen``.

    Raises:
        DataError: the file is no text in UTF-8, or a csv file has no header that can be used.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
        file.seek(0)
        found = TextFile(path, _stamp(os.fstat(file.fileno())), digest)
        skipped = _skip_mark(file, path)
        if found.delimiter:
            lines = _Lines(file, skipped)
            reader = csv.reader(lines, delimiter=found.delimiter, strict=True)
            found.fields = _header(reader, lines, path)
            scanned = scan_csv(reader, lines, found.fields)
        else:
            scanned = scan_jsonl(file, skipped)
        starts, lengths, numbers = found.starts.append, found.lengths.append, found.lines.append
        for start, length, line, record, why in scanned:
            if record is not None:
                seen.update(record)
                why = check(record)
            if why:
                account.add(f"{path}, line {line}", why)
                continue
            starts(start)
            lengths(length)
            numbers(line)
    return found


def scan_jsonl(file: Iterable[bytes], start: int) -> Iterator[Scanned]:
    """Each line that is not blank."""
    for line, raw in enumerate(file, 1):
        length = len(raw)
        if not raw.isspace():
            record, why = _parse_json(raw)
            yield Scanned(start, length, line, record, why)
        start += length


def _parse_json(raw: bytes) -> tuple[dict[str, Any] | None, str]:
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return None, f"is not UTF-8 (byte {error.start + 1} of the line)"
    except json.JSONDecodeError as error:
        return None, f"is not JSON ({error.msg}, character {error.pos + 1})"
    except (ValueError, RecursionError) as error:  # a number too long to read, or brackets without end
        return None, f"is not JSON that can be read ({error})"
    if not isinstance(record, dict):
        return (
            None,
            f"is {'a list' if isinstance(record, list) else 'a single value'}, not an object with named columns",
        )
    return record, ""


def scan_csv(reader: Iterator[list[str]], lines: _Lines, fields: Sequence[str]) -> Iterator[Scanned]:
    """Each record after the header; blank lines are none. A record may go over several lines within quotes."""
    while True:
        start, line = lines.position, lines.number + 1
        lines.broken = ""
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Scanned(start, 0, line, None, f"is no record of a csv file ({error}); a quote may not be closed")
            continue
        if not values:
            continue
        why = lines.broken
        if not why and len(values) != len(fields):
            why = f"has {len(values)} fields, the header has {len(fields)}"
        record = None if why else dict(zip(fields, values, strict=True))
        yield Scanned(start, lines.position - start, line, record, why)


class _Lines:
    """The lines of a csv file as text, with the place up to which they were taken."""

    def __init__(self, file: BinaryIO, position: int) -> None:
        self.position, self.number, self.broken = position, 0, ""
        self._file = file

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        raw = next(self._file)
        self.position += len(raw)
        self.number += 1
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.broken = f"is not UTF-8 (byte {error.start + 1} of line {self.number})"
            return raw.decode("utf-8", "replace")


def _header(reader: Iterator[list[str]], lines: _Lines, path: Path) -> list[str]:
    try:
        fields = next((values for values in reader if values), [])
    except csv.Error as error:
        raise DataError(f"{path}, line 1: the header cannot be read ({error})") from error
    if lines.broken:
        raise DataError(f"{path}, line 1: the header {lines.broken}; save the file as UTF-8")
    twice = [name for name in fields if fields.count(name) > 1]
    if twice or "" in fields:
        wrong = f"names {twice[0]!r} twice" if twice and twice[0] else "has a column without a name"
        raise DataError(f"{path}, line 1: the header {wrong}; each column needs a name of its own")
    return fields


def _skip_mark(file: BinaryIO, path: Path) -> int:
    """Pass over a byte-order mark; the number of bytes passed.

    Raises:
        DataError: the mark is that of another encoding.
    """
    head = file.read(3)
    for mark, encoding in OTHER_ENCODINGS.items():
        if head.startswith(mark):
            raise DataError(f"{path} is {encoding}; save it as UTF-8")
    passed = len(BOM) if head == BOM else 0
    file.seek(passed)
    return passed


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns

"""Training rows that ask what another row asks: found by the hash of their normalised prompts, a few bytes a row."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maxent_grpo.errors import DataError
from maxent_grpo.tasks.base import IndexedRows, TaskRow
from maxent_grpo.tasks.conversation import Conversation, PromptStyle, question_of
from maxent_grpo.training.types.choices import Duplicates, Overlap

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
NAMED = 3
"""Rows that an error names."""


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """The training rows that are left, and what was found."""

    rows: Sequence[TaskRow]
    places: Places | None
    """Where they stand among all rows, ascending; None where all are left."""
    num_duplicates: int
    """Rows whose prompt occurred before, those left out as held out not among them."""
    num_overlapping: int
    """Rows whose prompt is also held out."""


class SelectedRows(Sequence[TaskRow]):
    """Some rows of a sequence, in its order; none is kept."""

    def __init__(self, rows: Sequence[TaskRow], places: Places) -> None:
        self._rows, self._places = rows, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> TaskRow:  # pyright: ignore[reportIncompatibleMethodOverride] - rows one by one
        return self._rows[int(self._places[index])]


class SelectedIndexedRows(SelectedRows):
    """The same of rows that are found by their ids."""

    def __init__(self, rows: IndexedRows, places: Places) -> None:
        super().__init__(rows, places)  # pyright: ignore[reportArgumentType] - one by one is all that is asked of them
        self._indexed = rows

    def place_of(self, row_id: str) -> int:
        """The place of a row among those selected."""
        place = self._indexed.place_of(row_id)
        at = int(np.searchsorted(self._places, place))
        if at == len(self._places) or self._places[at] != place:
            raise KeyError(row_id)
        return at


def normalised(text: str) -> str:
    """The text in Unicode's NFKC form, without case, every run of white space one blank."""
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split())


def prompt_hash(turns: Conversation) -> int:
    """64 bits of the hash of a conversation's normalised turns; among a million rows two differing ones agree once in 40 million times."""
    if len(turns) == 1:
        text = normalised(turns[0]["content"])
    else:
        text = "\x1e".join(f"{turn['role']}\x1f{normalised(turn['content'])}" for turn in turns)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def prompt_hashes(rows: Iterable[TaskRow], num: int, style: PromptStyle) -> Hashes:
    """The hash of every row's question; what a style puts before all questions is left out of it."""
    return np.fromiter((prompt_hash(question_of(row, style)) for row in rows), dtype=np.uint64, count=num)


def distinct_rows(
    train: Sequence[TaskRow],
    held_out: Sequence[TaskRow],
    style: PromptStyle,
    *,
    dedup: Duplicates,
    overlap: Overlap,
) -> DistinctRows:
    """The training rows without those that the settings drop, in one pass over them.

    Raises:
        DataError: rows are held out too, and ``overlap`` is `stop`; or nothing is left.
    """
    hashes = prompt_hashes(train, len(train), style)
    shared = np.isin(hashes, prompt_hashes(held_out, len(held_out), style))
    if overlap is Overlap.stop and shared.any():
        names = ", ".join(train[int(place)].row_id for place in np.flatnonzero(shared)[:NAMED])
        raise DataError(
            f"data.overlap=stop: {shared.sum()} of {len(train)} training rows ask what a held-out row asks ({names}"
            f"{', ...' if shared.sum() > NAMED else ''}); remove them, or use data.overlap=drop to leave them out"
        )
    repeated = np.ones(len(train), dtype=bool)
    repeated[np.unique(hashes, return_index=True)[1]] = False
    dropped = np.zeros(len(train), dtype=bool)
    if overlap is Overlap.drop:
        repeated &= ~shared
        dropped |= shared
    if dedup is Duplicates.drop:
        dropped |= repeated
    counts = int(repeated.sum()), int(shared.sum())
    if not dropped.any():
        return DistinctRows(train, None, *counts)
    if dropped.all():
        raise DataError(
            f"all {len(train)} training rows ask what a held-out row asks, which leaves nothing to train on; hold out other "
            "rows, or use data.overlap=allow"
        )
    places = np.flatnonzero(~dropped).astype(np.int64)
    kept = SelectedIndexedRows(train, places) if isinstance(train, IndexedRows) else SelectedRows(train, places)
    return DistinctRows(kept, places, *counts)

"""What reward functions are given: completions with the columns of their rows, the state of the run, and a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

Message = dict[str, str]
MESSAGES = "prompt_messages"
"""Field of a rendered row with its prompt as messages."""
NOT_COLUMNS = ("prompt", MESSAGES)
"""Fields of a rendered row that reward functions get under another name."""


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Where training stands, for rewards that change with it; named as in transformers' ``TrainerState``."""

    global_step: int = 0
    """Optimiser steps made before the completions were sampled."""
    max_steps: int = 0
    """Optimiser steps of the whole run."""
    epoch: float = 0.0
    """Passes over the training rows begun before this one."""


@dataclass(frozen=True)
class RewardBatch:
    """Completions to be rewarded, and what functions may ask for besides; every sequence has one entry a completion."""

    prompts: Sequence[str]
    completions: Sequence[str]
    completion_ids: Sequence[Sequence[int]]
    columns: Mapping[str, Sequence[Any]]
    """Columns of the data set's rows."""
    conversations: Sequence[Sequence[Message]] | None = None
    """Each prompt as messages; None where the rows carry none."""
    state: TrainerState = field(default_factory=TrainerState)

    def __len__(self) -> int:
        return len(self.completions)

    def row(self, number: int) -> RewardBatch:
        """One completion by itself."""
        return self.rows(number, number + 1)

    def rows(self, first: int, last: int) -> RewardBatch:
        """Completions first .. last - 1."""
        here = slice(first, last)
        return RewardBatch(
            list(self.prompts[here]),
            list(self.completions[here]),
            list(self.completion_ids[here]),
            {name: list(column[here]) for name, column in self.columns.items()},
            None if self.conversations is None else list(self.conversations[here]),
            self.state,
        )


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """What reward functions may ask for of rows, column by column; None where a row lacks what others have."""
    names = {name for row in rows for name in row} - set(NOT_COLUMNS)
    return {name: [row.get(name) for row in rows] for name in sorted(names)}


def conversations_of(rows: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    """Every row's prompt as messages; None unless all carry them."""
    found = [row.get(MESSAGES) for row in rows]
    return None if any(messages is None for messages in found) else found


class Notes:
    """What a function notes down while it is called: columns of the completions table, and numbers for the metrics."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}
        self.metrics: dict[str, list[float]] = {}

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Add values to a column; over the whole call it needs one for each completion."""
        self.columns.setdefault(str(column), []).extend(plain(value) for value in values)

    def log_metric(self, name: str, value: float) -> None:
        """Note a number; a step reports the mean of those noted under one name.

        Raises:
            ValueError: it is not finite.
        """
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"log_metric({name!r}, {number}): only finite numbers have a mean")
        self.metrics.setdefault(str(name), []).append(number)


def plain(value: object) -> str | int | float | bool | None:
    """A value as a table of completions can hold it: numbers, texts and truth values as they are, anything else as its text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    return str(value)

"""What a task is: prompts with answers, a grader, and demonstrations for a supervised start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from maxent_grpo.rewards.grade import Grade


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One problem. ``row_id`` is a stable hash of the problem's content; ``columns`` holds what else the record keeps."""

    row_id: str
    messages: list[dict[str, str]]
    """A conversation of one or more turns, ``{"role": ..., "content": ...}``, that ends with the user's."""
    answer: str
    columns: dict[str, Any]


@runtime_checkable
class IndexedRows(Protocol):
    """Rows of a data set that need not be in memory, each found by its place and by its id."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> TaskRow: ...

    def place_of(self, row_id: str) -> int:
        """The place of the row with this id; raises KeyError if there is none."""
        ...


class RowMixture(Protocol):
    """Training rows from several sources, laid end to end, of which an epoch takes some. A task may have one as ``mixture``.

    It is a dataclass: rows that are left out change its ``sizes``.
    """

    @property
    def labels(self) -> Sequence[str]:
        """The sources' names."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Rows of each source."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows of an epoch."""
        ...

    def order(self, seed: int, epoch: int, *, shuffle: bool = True) -> Sequence[int]:
        """The places of an epoch's rows, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One problem with right answers and the probability of each under the demonstrator; the weights sum to 1."""

    row_id: str
    messages: list[dict[str, str]]
    answers: tuple[str, ...]
    weights: tuple[float, ...]
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What `data.prompt_template` can name beside the question, as of the task's rows."""


def rank_weights(num: int, skew: float) -> tuple[float, ...]:
    """The demonstrator's distribution over ``num`` ranked answers: exp(-skew * j) over ranks j = 0..num-1, normalised."""
    weights = [math.exp(-skew * rank) for rank in range(num)]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


class Task(Protocol):
    """A source of problems whose completions can be graded."""

    @property
    def name(self) -> str:
        """Name of the task, as in `data=<name>`."""
        ...

    @property
    def train_rows(self) -> Sequence[TaskRow]:
        """Problems to train on; a long sequence is asked for single rows, and need not hold them (``IndexedRows``)."""
        ...

    @property
    def eval_rows(self) -> Sequence[TaskRow]:
        """Held-out problems, disjoint from the training problems and the demonstrations by ``row_id``."""
        ...

    @property
    def answer_alphabet(self) -> str | None:
        """Characters that answers are made of; None when any may occur."""
        ...

    def grade(self, completion: str, answer: str) -> Grade:
        """Grade one completion against a row's answer."""
        ...

    def demonstrations(self, num: int, skew: float, seed: int) -> list[Demonstration]:
        """``num`` solved problems, none held out, for a supervised start; a task without them raises DataError.

        The right answer of rank j (in lexicographic order) has weight proportional to exp(-skew * j).
        """
        ...


@runtime_checkable
class EnumerableTask(Protocol):
    """What a task offers besides when every answer to a problem can be listed, right and wrong ones."""

    def count_answers(self, answer: str) -> int:
        """How many answers the problem with verifier ``answer`` has, without listing them."""
        ...

    def list_answers(self, answer: str) -> list[str]:
        """The text of every answer, each once, in an order that depends on the problem alone."""
        ...

"""Tasks whose problems are generated and all of whose right answers are known: what they share beside the problems themselves."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from maxent_grpo.errors import DataError
from maxent_grpo.tasks.base import Demonstration, TaskRow, rank_weights

MAX_FRUITLESS_DRAWS = 20_000
"""Consecutive draws without a new problem after which the space counts as exhausted."""


@dataclass(frozen=True, slots=True)
class GeneratedProblem:
    """A problem as a model, a grader and a demonstrator see it."""

    task: str
    """Name of the task."""
    prompt: str
    """The question, which says everything about the problem."""
    answer: str
    """The verifier spec."""
    answers: tuple[str, ...]
    """The canonical texts of all right answers, in lexicographic order."""
    parts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the question is made of, by name, for a question in other words."""

    @property
    def row_id(self) -> str:
        """The task's name and a hash of the question."""
        return f"{self.task}-" + hashlib.sha256(self.prompt.encode()).hexdigest()[:16]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The question as a conversation."""
        return [{"role": "user", "content": self.prompt}]

    def row(self) -> TaskRow:
        """The problem as a row of a dataset."""
        columns = {"num_modes": len(self.answers), "modes": list(self.answers), **self.parts}
        return TaskRow(self.row_id, self.messages, self.answer, columns)

    def demonstration(self, skew: float) -> Demonstration:
        """The problem with its answers, that of rank j with weight proportional to exp(-skew * j)."""
        return Demonstration(
            self.row_id, self.messages, self.answers, rank_weights(len(self.answers), skew), self.parts
        )


def draw_distinct(
    num: int,
    draw: Callable[[random.Random], GeneratedProblem | None],
    *,
    stream: str,
    exclude: Collection[str],
    exhausted: Callable[[int], str],
) -> list[GeneratedProblem]:
    """``num`` different problems whose row ids are not in ``exclude``, in the order in which a random stream yields them.

    Args:
        num: how many.
        draw: one random problem, or None when what was drawn is no wanted problem.
        stream: name of the random stream; equal names yield equal problems.
        exclude: row ids to leave out.
        exhausted: the complaint, given how many problems were found.

    Raises:
        DataError: there seem to be fewer.
    """
    rng = random.Random(stream)
    problems: dict[str, GeneratedProblem] = {}
    fruitless = 0
    while len(problems) < num:
        problem = draw(rng)
        row_id = None if problem is None else problem.row_id
        if problem is not None and row_id is not None and row_id not in exclude and row_id not in problems:
            problems[row_id] = problem
            fruitless = 0
            continue
        fruitless += 1
        if fruitless > MAX_FRUITLESS_DRAWS:
            raise DataError(exhausted(len(problems)))
    return list(problems.values())


def train_and_held_out(
    problems: Callable[[str, int, Collection[str]], list[GeneratedProblem]], num_train: int, num_eval: int
) -> tuple[list[TaskRow], list[TaskRow]]:
    """Disjoint training and held-out rows; the held-out ones do not depend on how many training rows are asked for.

    ``problems`` takes a stream's name, a number, and row ids to leave out.
    """
    held_out = problems("eval", num_eval, ())
    train = problems("train", num_train, {problem.row_id for problem in held_out})
    return [problem.row() for problem in train], [problem.row() for problem in held_out]


def refuse_impossible(checks: Iterable[tuple[bool, str]], kind: str) -> None:
    """Raise DataError with the first complaint whose condition does not hold: no problem of this kind could be generated."""
    for holds, complaint in checks:
        if not holds:
            raise DataError(f"{complaint}: no {kind} problem can be generated. Change that setting.")

"""Data sets whose rows are made when they are asked for, so that a test can have as many as it likes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from maxent_grpo.rewards.coloring import ColoringSpec, grade_coloring
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.tasks.base import Demonstration, TaskRow


def question(number: int) -> str:
    """Every third question is longer."""
    return f"{number}" if number % 3 else f"please: {number}"


class MadeRows(Sequence[TaskRow]):
    """Row n asks ``ask(n)``; counts how often each was made, and finds a row by its id."""

    def __init__(
        self, num: int, ask: Callable[[int], str] = question, name: str = "row", *, counted: bool = True
    ) -> None:
        self._num, self._ask, self._name, self._counted = num, ask, name, counted
        self.made: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> TaskRow:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not 0 <= index < self._num:
            raise IndexError(index)
        if self._counted:
            self.made[index] += 1
        return made_row(index, self._ask, self._name)

    def place_of(self, row_id: str) -> int:
        name, _, number = row_id.rpartition("-")
        if name != self._name or not 0 <= int(number) < self._num:
            raise KeyError(row_id)
        return int(number)


def made_row(number: int, ask: Callable[[int], str] = question, name: str = "row") -> TaskRow:
    """Row ``number`` of ``MadeRows``."""
    answer = ColoringSpec(((0, 1),), "R?", "RGB").to_json()
    return TaskRow(f"{name}-{number}", [{"role": "user", "content": ask(number)}], answer, {"number": number})


@dataclass(frozen=True)
class MadeTask:
    """A task over such rows, graded as colourings are."""

    train_rows: Sequence[TaskRow]
    eval_rows: Sequence[TaskRow]
    mixture: Any = None
    num_skipped: int = 0
    name: str = "made"
    answer_alphabet: str | None = "RGB"

    def grade(self, completion: str, answer: str) -> Grade:
        return grade_coloring(completion, answer)

    def demonstrations(self, num: int, skew: float, seed: int) -> list[Demonstration]:
        return []

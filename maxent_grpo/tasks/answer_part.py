"""A task whose grader sees a part of each completion: what stands in its answer tags or its box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from maxent_grpo.rewards.extract import PartGrader
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.tasks.base import Demonstration, RowMixture, Task, TaskRow
from maxent_grpo.training.types.choices import AnswerPart


@dataclass(frozen=True)
class PartTask:
    """The task, but for how it grades. Its answers cannot be listed, as completions are more than answers."""

    task: Task
    part: AnswerPart
    begun: str = ""
    """What the prompt has begun the assistant's turn with; the part may begin in it."""
    answer_alphabet: str | None = None

    @property
    def name(self) -> str:
        """The task's."""
        return self.task.name

    @property
    def train_rows(self) -> Sequence[TaskRow]:
        """The task's."""
        return self.task.train_rows

    @property
    def eval_rows(self) -> Sequence[TaskRow]:
        """The task's."""
        return self.task.eval_rows

    @property
    def mixture(self) -> RowMixture | None:
        """The task's, if its training rows are one."""
        return getattr(self.task, "mixture", None)

    @property
    def num_skipped(self) -> int:
        """Rows that the task left out because they cannot be used."""
        return getattr(self.task, "num_skipped", 0)

    @property
    def fingerprint(self) -> str:
        """The task's, if its problems come from outside."""
        return getattr(self.task, "fingerprint", "")

    def grade(self, completion: str, answer: str) -> Grade:
        """The task's grade of the part; 0, with the reason, where the completion does not have exactly one."""
        return PartGrader(self.task.grade, self.part.value, self.begun)(completion, answer)

    @property
    def sent_grader(self) -> Callable[[str, str], Grade] | None:
        """The grader by itself, for other processes, where the task has one to send."""
        grade = getattr(self.task, "sent_grader", None)
        return None if grade is None else PartGrader(grade, self.part.value, self.begun)

    def demonstrations(self, num: int, skew: float, seed: int) -> list[Demonstration]:
        """The task's."""
        return self.task.demonstrations(num, skew, seed)


def graded_by_part(task: Task, part: AnswerPart, begun: str = "") -> Task:
    """The task with a grader that sees that part of a completion; the task itself where it sees the whole."""
    return task if part == AnswerPart.whole else PartTask(task, part, begun)

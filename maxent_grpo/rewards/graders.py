"""The text graders by name, and how one is called.

A grader compares a completion with the answer of its problem. Every grader is total: whatever a completion holds, it returns a
grade, quickly. It raises ``DataError`` when the answer itself, which comes from the data, cannot be graded against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from maxent_grpo.rewards.choice import grade_choice, right_letter
from maxent_grpo.rewards.exact import grade_exact, right_text
from maxent_grpo.rewards.extract import AnswerPart, extract
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.math_answer import grade_math_answers, right_answer
from maxent_grpo.rewards.numeric import grade_numeric, right_number

GradeMany = Callable[[Sequence[str], Sequence[str]], list[Grade]]


@dataclass(frozen=True)
class TextGrader:
    """A grader, called with a completion and an answer, or with many at once through ``many``."""

    rewards: str
    """What it rewards, in one line."""
    many: GradeMany
    """Completions and their answers, equally many, to grades."""
    check: Callable[[str], object]
    """Called with an answer, raises ``DataError`` if none can be graded against it."""

    def __call__(self, completion: str, answer: str) -> Grade:
        """The grade of one completion.

        Raises:
            DataError: the answer cannot be graded against.
        """
        (grade,) = self.many([completion], [answer])
        return grade


def numeric_grader(absolute: float = 0.0, relative: float = 0.0) -> TextGrader:
    """The numeric grader with a tolerance: right within ``absolute``, or within ``relative`` times the answer's size."""

    def grade(completion: str, answer: str) -> Grade:
        return grade_numeric(completion, answer, absolute=absolute, relative=relative)

    return TextGrader("1 if the completion states one number and it is the answer's", _one_by_one(grade), right_number)


def on_part(grader: TextGrader, part: AnswerPart | str) -> TextGrader:
    """The grader, shown only the named part of each completion; one without that part gets reward 0 and the reason why."""

    def many(completions: Sequence[str], answers: Sequence[str]) -> list[Grade]:
        parts = [extract(completion, part) for completion in completions]
        grades = iter(
            grader.many(
                [shown.text for shown in parts if not shown.reason],
                [answer for shown, answer in zip(parts, answers, strict=True) if not shown.reason],
            )
        )
        return [Grade(0.0, None, shown.reason) if shown.reason else next(grades) for shown in parts]

    return TextGrader(grader.rewards, many, grader.check)


@dataclass(frozen=True)
class NamedGrader:
    """A grader of ``GRADERS``, as it can be sent to another process."""

    name: str

    def __call__(self, completion: str, answer: str) -> Grade:
        """The grade of one completion."""
        return GRADERS[self.name](completion, answer)


def _one_by_one(grade: Callable[[str, str], Grade]) -> GradeMany:
    def many(completions: Sequence[str], answers: Sequence[str]) -> list[Grade]:
        return [grade(completion, answer) for completion, answer in zip(completions, answers, strict=True)]

    return many


GRADERS: dict[str, TextGrader] = {
    "exact": TextGrader("1 if the completion is the answer, white space aside", _one_by_one(grade_exact), right_text),
    "numeric": numeric_grader(),
    "choice": TextGrader(
        "1 if the completion chooses the answer's letter and no other", _one_by_one(grade_choice), right_letter
    ),
    "math": TextGrader(
        "1 if the completion states one answer, mathematically the right one", grade_math_answers, right_answer
    ),
}
"""The graders and what each rewards."""

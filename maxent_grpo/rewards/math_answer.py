r"""Grading of mathematical answers: LaTeX, fractions, sets, intervals, tuples, matrices, equations, units, words.

The outer form of an answer, its numbers and its words are read here; the expressions in it by math-verify, in a process of its own
(``math_process``). An answer that is a number is only matched by a number, ``\sqrt{49}`` is not 7: whoever repeats the problem
has not solved it. A unit after a number does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from maxent_grpo.errors import DataError
from maxent_grpo.rewards.answer_match import key_of, matches
from maxent_grpo.rewards.answer_shape import Shape, Unreadable, answer_shape
from maxent_grpo.rewards.extract import stated_answer
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.latex import normalised
from maxent_grpo.rewards.math_process import SHARED, MathProcess, Verdict

REASONS = {"unread": "unreadable", "failed": "unreadable"}
"""Reason for what the process says of an expression, where that is not the reason itself."""


@dataclass(frozen=True, slots=True)
class RightAnswer:
    """The answer of a problem, read."""

    text: str
    shape: Shape
    key: str


def grade_math_answers(completions: Sequence[str], answers: Sequence[str]) -> list[Grade]:
    """The grades of many completions, see ``grade_math``."""
    return [grade_math(completion, answer) for completion, answer in zip(completions, answers, strict=True)]


def grade_math(completion: str, answer: str, process: MathProcess = SHARED) -> Grade:
    """Reward 1 if the completion states one answer and it is, mathematically, the problem's, else 0.

    The key of a right answer is that of the problem's answer. A wrong one has its own, in which equal numbers, sets and
    expressions are equal however they are written.

    Reasons: those of ``stated_answer``; ``too_long``, ``too_deep``, ``too_large`` (a huge exponent), ``syntax``, ``forbidden`` (a command
    or sign that no answer has), ``unreadable`` (refused by the library), ``timeout``, ``memory``, ``crashed``; a wrong answer has
    none.

    Raises:
        DataError: the problem's answer cannot be read.
        RewardError: the process that reads expressions cannot be started.
    """
    right = right_answer(answer, process)
    stated = stated_answer(completion)
    if stated.reason:
        return Grade(0.0, None, stated.reason)
    if normalised(stated.text) == right.text:
        return Grade(1.0, right.key, "")
    reader = _Reader(process)
    try:
        shape = answer_shape(stated.text)
        if matches(right.shape, shape, reader.same):
            return Grade(1.0, right.key, "")
        key = key_of(shape, reader.key)
    except Unreadable as refusal:
        return Grade(0.0, None, str(refusal))
    return Grade(0.0, None, "", key=key if key != right.key else f"not {key}")


@lru_cache(maxsize=8192)
def right_answer(answer: str, process: MathProcess = SHARED) -> RightAnswer:
    """Read a problem's answer, which may stand in a solution as an answer does in a completion.

    Raises:
        DataError: it has no form that is known, or an expression in it cannot be read.
    """
    stated = stated_answer(answer)
    try:
        if stated.reason:
            raise Unreadable(stated.reason)
        shape = answer_shape(stated.text)
        return RightAnswer(normalised(stated.text), shape, key_of(shape, _Reader(process).key))
    except Unreadable as refusal:
        raise DataError(
            f"answer {answer[:200]!r} cannot be read as mathematics ({refusal}), so that no completion can be graded against it by "
            "the math grader: correct or drop the row, or choose the grader exact"
        ) from None


class _Reader:
    """Expressions read by the process; one that cannot be read raises ``Unreadable`` with the reason."""

    def __init__(self, process: MathProcess) -> None:
        self._process = process

    def same(self, right: str, text: str) -> bool:
        """Whether ``text`` is what ``right`` is."""
        return self._checked(self._process.ask(right, text)).same

    def key(self, text: str) -> str:
        """The canonical form of ``text``."""
        return self._checked(self._process.ask(None, text)).key

    def _checked(self, verdict: Verdict) -> Verdict:
        if verdict.status != "read":
            raise Unreadable(REASONS.get(verdict.status, verdict.status))
        return verdict

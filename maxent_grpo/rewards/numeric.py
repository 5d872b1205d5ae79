"""Grading of numbers. Pure text in, verdict out; see ``numerals`` for what a number is."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from maxent_grpo.errors import DataError
from maxent_grpo.rewards.extract import stated_answer
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.numerals import Numeral, read_number, same_number

_DIGITS = re.compile(r"\d[\d,]*(?:\.\d+)?")


def grade_numeric(completion: str, answer: str, *, absolute: float = 0.0, relative: float = 0.0) -> Grade:
    """Reward 1 if the completion states one number, and it is the answer's, else 0.

    It is the answer's as ``same_number`` says, or within ``absolute`` of it, or within ``relative`` times its size. Of working
    with its result, ``3 + 4 = 7``, the result counts. The key of a right answer is the answer's value; of a wrong one, its own.

    Reasons: those of ``stated_answer``, ``several`` (more than one number), ``not_a_number``; a wrong number has none.

    Raises:
        DataError: the answer is not a number.
    """
    right = right_number(answer)
    stated = stated_answer(completion)
    if stated.reason:
        return Grade(0.0, None, stated.reason)
    number = result_number(stated.text)
    if number is None:
        several = len(set(_DIGITS.findall(stated.text))) > 1
        return Grade(0.0, None, "several" if several else "not_a_number")
    if same_number(right, number) or _within(right, number, Fraction(absolute), Fraction(relative)):
        return Grade(1.0, str(right.value), "")
    return Grade(0.0, None, "", key=str(number.value))


@lru_cache(maxsize=8192)
def right_number(answer: str) -> Numeral:
    """The number that an answer is, which may stand in it as in a completion (``... #### 72``).

    Raises:
        DataError: it is none.
    """
    stated = stated_answer(answer)
    number = None if stated.reason else result_number(stated.text)
    if number is None:
        raise DataError(
            f"answer {answer[:200]!r} is not one number, so that no completion can be graded against it by the numeric grader: "
            "correct the row, or choose the grader math or exact"
        )
    return number


def result_number(text: str) -> Numeral | None:
    """The number that a text is, or that stands after its last equals sign with no other number alone between such signs."""
    *working, result = text.split("=")
    number = read_number(result)
    others = [read_number(part) for part in working]
    return None if number is None or any(other and other.value != number.value for other in others) else number


def _within(right: Numeral, number: Numeral, absolute: Fraction, relative: Fraction) -> bool:
    return abs(right.value - number.value) <= max(absolute, relative * abs(right.value))

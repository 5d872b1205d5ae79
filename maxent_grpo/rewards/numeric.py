"""Grading of numbers. Pure text in, verdict out."""

from __future__ import annotations

from fractions import Fraction

from maxent_grpo.rewards.extract import stated_answer
from maxent_grpo.rewards.grade import Grade


def grade_numeric(completion: str, answer: str, *, absolute: float = 0.0, relative: float = 0.0) -> Grade:
    """Reward 1 if the completion states one number, and it is the answer's within the tolerance; else 0."""
    text, reason = stated_answer(completion)
    if reason:
        return Grade(0.0, None, reason)
    try:
        value, right = Fraction(text[:20]), Fraction(answer)
    except ValueError:
        return Grade(0.0, None, "not_a_number")
    if abs(value - right) <= max(absolute, relative * abs(right)):
        return Grade(1.0, str(right), "")
    return Grade(0.0, None, "", key=str(value))

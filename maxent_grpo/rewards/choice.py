"""Grading of multiple choice. Pure text in, verdict out."""

from __future__ import annotations

from maxent_grpo.rewards.extract import stated_answer
from maxent_grpo.rewards.grade import Grade


def grade_choice(completion: str, answer: str) -> Grade:
    """Reward 1 if the completion chooses the answer's letter, else 0."""
    text, reason = stated_answer(completion)
    if reason:
        return Grade(0.0, None, reason)
    letter = text.strip("(). ").upper()
    return Grade(1.0, letter, "") if letter == answer.strip("(). ").upper() else Grade(0.0, None, "", key=letter)

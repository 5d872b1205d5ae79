"""Grading by comparing texts. Pure text in, verdict out."""

from __future__ import annotations

from maxent_grpo.rewards.extract import MAX_COMPLETION
from maxent_grpo.rewards.grade import Grade


def grade_exact(completion: str, answer: str) -> Grade:
    """Reward 1 if the completion is the answer, else 0; runs of white space count as one blank, none at the ends.

    Case, punctuation and everything else count. The key is the text with its white space normalised.

    Reasons: ``empty``, ``too_long`` (refused unread); a wrong text has none.
    """
    if len(completion) > MAX_COMPLETION:
        return Grade(0.0, None, "too_long")
    text = " ".join(completion.split())
    if not text:
        return Grade(0.0, None, "empty")
    return Grade(1.0, text, "") if text == " ".join(answer.split()) else Grade(0.0, None, "", key=text)

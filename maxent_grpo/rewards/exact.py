"""Grading by comparing texts. Pure text in, verdict out."""

from __future__ import annotations

from maxent_grpo.errors import DataError
from maxent_grpo.rewards.extract import MAX_COMPLETION
from maxent_grpo.rewards.grade import Grade


def grade_exact(completion: str, answer: str) -> Grade:
    """Reward 1 if the completion is the answer, else 0; runs of white space count as one blank, none at the ends.

    Case, punctuation and everything else count. The key is the text with its white space normalised.

    Reasons: ``empty``, ``too_long`` (refused unread); a wrong text has none.

    Raises:
        DataError: the answer is blank.
    """
    right = right_text(answer)
    if len(completion) > MAX_COMPLETION:
        return Grade(0.0, None, "too_long")
    text = " ".join(completion.split())
    if not text:
        return Grade(0.0, None, "empty")
    return Grade(1.0, text, "") if text == right else Grade(0.0, None, "", key=text)


def right_text(answer: str) -> str:
    """The answer with its white space normalised.

    Raises:
        DataError: it is blank.
    """
    text = " ".join(answer.split())
    if not text:
        raise DataError(
            f"answer {answer[:200]!r} is blank, so that no completion can be right: correct or drop the row"
        )
    return text

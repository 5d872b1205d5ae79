"""What grading one completion says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on one completion.

    ``mode`` is the canonical key of a right answer, shared by all completions that say the same, and None when the answer is
    not right. ``reason`` is empty when the completion parsed as an answer, right or wrong, else one word to count by.
    """

    reward: float
    mode: str | None
    reason: str

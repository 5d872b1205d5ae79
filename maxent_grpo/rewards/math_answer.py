"""Grading of mathematical answers."""

from __future__ import annotations

from collections.abc import Sequence

from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.numeric import grade_numeric


def grade_math_answers(completions: Sequence[str], answers: Sequence[str]) -> list[Grade]:
    """Reward 1 for each completion whose stated answer is mathematically its row's answer, else 0."""
    return [grade_numeric(text, answer) for text, answer in zip(completions, answers, strict=True)]

"""Reward functions for tests, named in `reward.functions` as support.graders:<name>. All but the broken ones grade any text."""

import math
from collections.abc import Sequence

from maxent_grpo.rewards.grade import Grade


def spread(completions: Sequence[str]) -> list[float]:
    """Share of four characters that differ from one another."""
    return [len(set(text)) / 4 for text in completions]


def half(completions: Sequence[str]) -> list[float]:
    """The same for every completion, and not right."""
    return [0.5 for _ in completions]


def starts_with_red(completions: Sequence[str]) -> list[float]:
    return [float(text.startswith("R")) for text in completions]


def named_by_first(completions: Sequence[str]) -> list[Grade]:
    """As ``spread``; completions that start alike are one answer."""
    return [Grade(len(set(text)) / 4, None, "", key=text[:1] or None) for text in completions]


def refuses_green(completions: Sequence[str]) -> list[float]:
    """Raises as soon as a completion holds a G."""
    for text in completions:
        if "G" in text:
            raise LookupError(f"no price for {text}")
    return spread(completions)


def silent_on_green(completions: Sequence[str]) -> list[float | None]:
    """Abstains from completions with a G."""
    return [None if "G" in text else len(set(text)) / 4 for text in completions]


def silent(completions: Sequence[str]) -> list[None]:
    return [None for _ in completions]


def undefined_grade_on_green(completions: Sequence[str]) -> list[Grade]:
    """A verdict whose number does not exist."""
    return [Grade(math.nan if "G" in text else 1.0, mode=None, reason="") for text in completions]


def not_a_number_on_green(completions: Sequence[str]) -> list[float]:
    return [math.nan if "G" in text else 1.0 for text in completions]


def broken(completions: Sequence[str]) -> list[float]:
    """Raises on everything."""
    raise LookupError(f"no idea about {len(completions)} completions")


def flat_row(row_id: str) -> bool:
    """Whether ``mixed_on_half`` gives every completion of a row the same reward."""
    return sum(map(ord, row_id)) % 2 == 1


def mixed(completions: Sequence[str]) -> list[float]:
    """0 and 1 by turns, so that every group with at least two completions has both."""
    return [float(number % 2) for number in range(len(completions))]


def mixed_on_half(completions: Sequence[str], row_id: Sequence[str]) -> list[float]:
    """0 and 1 by turns on about half of the rows, 1 throughout on the others."""
    return [1.0 if flat_row(name) else float(number % 2) for number, name in enumerate(row_id)]


def only_first(completions: Sequence[str]) -> list[float | None]:
    """Grades the first completion of every four and abstains from the others."""
    return [1.0 if number % 4 == 0 else None for number in range(len(completions))]

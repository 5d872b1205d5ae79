"""Reward functions for tests, named in `reward.functions` as support.graders:<name>. All but the broken ones grade any text."""

import math
import os
import time
from collections.abc import Sequence
from typing import Any

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


def logs_length(completions: Sequence[str], trainer_state: Any, log_metric: Any, log_extra: Any) -> list[float]:
    """Notes the longest completion, the step, and each completion's length."""
    log_metric("longest", max(map(len, completions)))
    log_metric("step", trainer_state.global_step + 1)
    log_extra("length", [len(text) for text in completions])
    return [float(text.startswith("B")) for text in completions]


def slow_on_red(solution_str: str, ground_truth: str) -> float:
    """In verl's style; takes a tenth of a second over completions that start with an R, which are the good ones."""
    assert ground_truth
    if not solution_str.startswith("R"):
        return len(set(solution_str)) / 8
    time.sleep(0.1)
    return 1.0


def half_score(solution_str: str, ground_truth: str) -> dict[str, object]:
    """In verl's style, with a detail beside the score."""
    return {"score": 0.5, "start": solution_str[:1]}


def by_question(prompts: Sequence[Any], completions: Sequence[Any]) -> list[float]:
    """Takes texts as well as messages, and rewards these by other rules."""
    return [
        float(len(set(text)) / 4 if isinstance(text, str) else len(prompt) * (text[0]["content"][:1] == "R"))
        for prompt, text in zip(prompts, completions, strict=True)
    ]


def place_in_the_batch(completions: Sequence[str]) -> list[float]:
    """Where each completion stands, which a part of the batch does not tell."""
    return [float(place) for place in range(len(completions))]


def takes_a_minute(completions: Sequence[str]) -> list[float]:
    time.sleep(60)
    return half(completions)


def overflows_in_two_steps(completions: Sequence[str], row_id: Sequence[str], trainer_state: Any) -> list[float]:
    """Finite numbers; those of the first row are too large for single precision in steps 2 and 5."""
    bad = row_id[0] if trainer_state.global_step in (1, 4) else None
    return [
        1e100 * (number % 2) if name == bad else len(set(text)) / 4
        for number, (text, name) in enumerate(zip(completions, row_id, strict=True))
    ]


def overflows(completions: Sequence[str]) -> list[float]:
    """Finite numbers that are too large for single precision."""
    return [1e100 * (number % 2) for number in range(len(completions))]


def ends_the_process(completions: Sequence[str]) -> list[float]:
    """Rewards nothing, and takes the process that asks with it."""
    os._exit(7)

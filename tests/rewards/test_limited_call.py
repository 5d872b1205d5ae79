"""Foreign code in a child of its own: what it returns comes back, and whatever else it does ends with it."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from maxent_grpo.rewards.limited_call import limited_call


def endless() -> float:
    while True:
        try:
            sum(range(10_000))
        except BaseException:
            continue


def too_large() -> float:
    return float(len(bytearray(1 << 31)))


def raising() -> float:
    raise LookupError


def leaving() -> float:
    os._exit(0)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: 0.25, 0.25),
        (raising, "grader_error"),
        (leaving, "grader_error"),
        (too_large, "grader_error"),
        (lambda: float("not a number"), "grader_error"),
    ],
)
def test_a_number_comes_back_or_one_word(function: Any, expected: float | str) -> None:
    assert limited_call(function) == expected


def test_what_swallows_every_exception_is_ended_by_its_time() -> None:
    assert limited_call(endless, cpu_seconds=0.2) == "timeout"
    assert limited_call(lambda: time.sleep(60) or 1.0, wall=0.3) == "timeout"

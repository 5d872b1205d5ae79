"""Reward functions that return, log or raise anything: finite grades come of it, or one RewardError that names the term."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support.fuzzing import JSON_VALUES, cases, try_cases

from maxent_grpo.errors import RewardError
from maxent_grpo.rewards.batch import RewardBatch
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.term_settings import FunctionStyle
from maxent_grpo.rewards.terms import RewardTerm, ask_terms

TEXTS = ["1", "", "a\ud800", "x" * 5000]


class Unshowable:
    """Raises when it is asked for its text or its number."""

    def __repr__(self) -> str:
        raise LookupError("no text")

    def __float__(self) -> float:
        raise LookupError("no number")

    def __iter__(self) -> Any:
        raise LookupError("no parts")


class Mute(Exception):
    def __repr__(self) -> str:
        raise LookupError("no text")

    __str__ = __repr__


ODD: list[Any] = [
    *(
        None,
        True,
        "",
        "1",
        b"1",
        10**400,
        -(10**400),
        math.nan,
        math.inf,
        -math.inf,
        1e308,
        1 + 2j,
        object(),
        Unshowable(),
    ),
    *(
        Grade(1.0, None, ""),
        Grade(math.nan, None, ""),
        Grade(10**400, "m", "r"),
        Grade(None, None, ""),
        Ellipsis,
        [],
        {},
    ),  # pyright: ignore[reportArgumentType]
    *(np.float32(1), np.array(1.0), np.array([1.0, 2.0]), np.ones((4, 1)), np.array(["a"] * 4), np.array([], float)),
    *(
        torch.tensor(1.0),
        torch.ones(4),
        torch.ones(4, 2),
        torch.ones(4, device="meta"),
        torch.ones(4, requires_grad=True),
    ),
    *(torch.tensor([math.nan] * 4), torch.ones(4, dtype=torch.bool), {"score": 1}, {"score": None}, {"scores": 1}, len),
]
RAISED: list[Callable[[], BaseException]] = [
    lambda: ValueError("v"), lambda: KeyError(3), lambda: StopIteration(), lambda: RecursionError(), lambda: MemoryError(),
    lambda: ExceptionGroup("g", [ValueError("a")]), lambda: SystemExit(3), lambda: GeneratorExit(), Mute,
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), lambda: TimeoutError("late"), lambda: AssertionError(),
]  # fmt: skip
SINGLE = st.one_of(st.sampled_from(ODD), JSON_VALUES)
RETURNS = st.one_of(
    SINGLE,
    st.lists(st.floats(), min_size=4, max_size=4),
    st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=4, max_size=4),
    st.lists(SINGLE, min_size=4, max_size=4),
    st.lists(SINGLE, max_size=6),
    st.lists(st.floats(0, 1), min_size=4, max_size=4).map(tuple),
    st.lists(st.floats(0, 1), min_size=4, max_size=4).map(np.array),
    st.lists(st.floats(0, 1), min_size=4, max_size=4).map(torch.tensor),
)
CASES = st.fixed_dictionaries(
    {
        "returned": RETURNS,
        "raised": st.one_of(st.none(), st.none(), st.none(), st.sampled_from(RAISED)),
        "logged": st.one_of(st.none(), SINGLE, st.lists(SINGLE, min_size=4, max_size=4)),
        "verl": st.booleans(),
        "tolerant": st.booleans(),
        "limited": st.booleans(),
        "lazy": st.booleans(),
    }
)


def function_of(case: dict[str, Any]) -> Callable[..., Any]:
    """A reward function that does what the case says."""

    def act(log_extra: Any) -> Any:
        if case["raised"] is not None:
            raise case["raised"]()
        if case["logged"] is not None:
            log_extra("seen", case["logged"])
        returned = case["returned"]
        return (entry for entry in returned) if case["lazy"] and isinstance(returned, list) else returned

    def of_all(completions: list[str], log_extra: Any, **kwargs: Any) -> Any:
        return act(log_extra)

    def of_each(data_source: Any, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
        return act(lambda *_: None)

    return of_each if case["verl"] else of_all


def grades_or_one_error(case: dict[str, Any]) -> None:
    batch = RewardBatch(["p"] * 4, TEXTS, [[1]] * 4, {"row_id": [f"r{n}" for n in range(4)], "answer": ["1"] * 4})
    style = FunctionStyle.verl if case["verl"] else FunctionStyle.text
    limit = 5.0 if case["limited"] else None
    term = RewardTerm("mine", function_of(case), case["tolerant"], style, limit)
    try:
        verdict = ask_terms([term], batch)["mine"]
    except RewardError as error:
        assert "reward term 'mine'" in str(error)
        assert len(str(error)) < 2000
        return
    assert len(verdict.grades) == len(verdict.failures) == 4
    assert all(grade is None or math.isfinite(float(grade.reward)) for grade in verdict.grades)
    assert all(len(column) == 4 for column in verdict.columns.values())


@cases(short=100, long=800)
def test_whatever_a_function_does_gives_finite_grades_or_an_error_that_names_it(num_cases: int) -> None:
    try_cases(num_cases, CASES, grades_or_one_error, seconds=20)

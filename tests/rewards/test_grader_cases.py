"""The hand-checked verdicts of the text graders."""

from __future__ import annotations

import pytest
from rewards.cases import choice, exact, math, numeric
from support.each import each_of
from support.grader_case import Case

from maxent_grpo.rewards.graders import GRADERS

TABLES = {"exact": exact, "numeric": numeric, "choice": choice, "math": math}
CASES = [(name, case) for name, table in TABLES.items() for case in (*table.PLAIN, *table.ADVERSARIAL)]


def verdict(name: str, case: Case) -> str:
    grade = GRADERS[name](case.text, case.answer)
    assert grade.reward == (1.0 if grade.mode is not None else 0.0)
    assert not (grade.reward and grade.reason)
    assert (grade.key is None) == bool(grade.reason)
    return "right" if grade.reward else grade.reason or "wrong"


@pytest.mark.parametrize("name", TABLES)
def test_each_text_gets_the_verdict_that_was_checked_by_hand(name: str) -> None:
    def checked(case: Case) -> None:
        assert verdict(name, case) == case.verdict

    each_of((case for grader, case in CASES if grader == name), checked)


def test_there_are_at_least_two_hundred_cases_and_half_of_them_are_adversarial() -> None:
    adversarial = sum(len(table.ADVERSARIAL) for table in TABLES.values())
    assert len(CASES) >= 200
    assert adversarial >= len(CASES) / 2
    assert len({(name, case.text, case.answer) for name, case in CASES}) == len(CASES)
    assert all(case.why for _, case in CASES)

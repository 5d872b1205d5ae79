"""Grading of countdown answers: right, wrong and unreadable completions, hostile ones, and broken specs."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.properties import quick

from maxent_grpo.errors import DataError
from maxent_grpo.rewards.countdown import (
    ALPHABET,
    CountdownSpec,
    answer_text,
    grade_countdown,
    grade_expression,
    longest_answer,
    parse_spec,
)
from maxent_grpo.rewards.grade import Grade

NUMBERS, TARGET = (3, 4, 5), 35
RIGHT = Grade(1.0, "(4+3)*5", "")


def wrong(key: str) -> Grade:
    return Grade(0.0, None, "", key)


def refused(reason: str) -> Grade:
    return Grade(0.0, None, reason)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("(3+4)*5", RIGHT),
        ("5*(4+3)", RIGHT),
        (" \t\n( 4 + 3 ) * 5\r\f\v", RIGHT),
        ("(3\n+4)*5", RIGHT),
        ("((((3)+4))*(5))", RIGHT),
        ("-(-3-4)*5", RIGHT),
        ("(3+4)*5=35", RIGHT),
        ("(3+4)*5 = 35 ", RIGHT),
        ("(3+4)\u00d75", RIGHT),
        ("<think>3+4=7</think> <answer> (3+4)*5 </answer>.", RIGHT),
        ("<answer>3+4+5</answer> no: <answer>(3+4)*5</answer>", RIGHT),
        ("<answer>(3+4)*5</answer> or <answer>3", RIGHT),
        ("3+4*5", wrong("5*4+3")),
        ("3*4/5", wrong("4*3/5")),
        ("(3+4)*5=36", wrong("(4+3)*5=36")),
        ("3+4+5=35", wrong("5+4+3=35")),
        ("", refused("empty")),
        (" \n ", refused("empty")),
        ("<answer> </answer>(3+4)*5", refused("empty")),
        ("(3+4)*5" + " " * 10_000, RIGHT),
        ("(3+4)*5" + "+0" * 125, refused("too_long")),
        ("1" * 256, refused("wrong_numbers")),
        ("1" * 257, refused("too_long")),
        ("\u0663+4", refused("not_ascii")),
        ("(\uff13+\uff14)*\uff15", refused("not_ascii")),
        ("(3+4)*5\u00b2", refused("not_ascii")),
        ("\u00a0(3+4)*5", refused("not_ascii")),
        ("\ud800", refused("not_ascii")),
        ("(3+4)*5\u0000", refused("forbidden")),
        ("(3+4)x5", refused("forbidden")),
        ("__import__('os').system('true')", refused("forbidden")),
        ("1_0+4", refused("forbidden")),
        ("0x10", refused("forbidden")),
        ("1e3", refused("forbidden")),
        ("3.0+4", refused("forbidden")),
        ("(3+4)*5 # five", refused("forbidden")),
        ("3,4", refused("forbidden")),
        ("9**9**9**9", refused("forbidden")),
        ("3**4*5", refused("forbidden")),
        ("5//(3-4)", refused("forbidden")),
        ("+3+4*5", refused("forbidden")),
        ("3+ +4*5", refused("forbidden")),
        ("(3+4)(5)", refused("forbidden")),
        ("()", refused("forbidden")),
        ("(3+4)*5 is the answer", refused("forbidden")),
        ("007", refused("syntax")),
        ("(03+4)*5", refused("syntax")),
        ("3 4 5", refused("syntax")),
        ("(3+4*5", refused("syntax")),
        ("3+4)*5", refused("syntax")),
        ("3+4\n*5", refused("syntax")),
        ("3+", refused("syntax")),
        ("=35", refused("syntax")),
        ("(3+4)*5=", refused("syntax")),
        ("(3+4)*5==35", refused("syntax")),
        ("(3+4)*5=30+5", refused("syntax")),
        ("35", refused("wrong_numbers")),
        ("7*5", refused("wrong_numbers")),
        ("(3+4)*5+0", refused("wrong_numbers")),
        ("(3+4)*5*5/5", refused("wrong_numbers")),
        ("34+5", refused("wrong_numbers")),
        ("00", refused("wrong_numbers")),
        ("1/0", refused("wrong_numbers")),
        ("-" * 60 + "3", refused("wrong_numbers")),
        ("-" * 100 + "3", refused("too_deep")),
        ("(" * 64 + "3" + ")" * 64, refused("wrong_numbers")),
        ("(" * 65 + "3" + ")" * 65, refused("too_deep")),
    ],
)
def test_each_kind_of_completion_gets_its_grade(completion: str, expected: Grade) -> None:
    assert grade_expression(completion, NUMBERS, TARGET) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("5/(3-3)", refused("division_by_zero")),
        ("5/(3/(3-5+2))", refused("wrong_numbers")),
        ("3/(5/(3-3))", refused("wrong_numbers")),
        ("5*(3-3)", wrong("5*(3-3)")),
        ("5+3-3", Grade(1.0, "5+3-3", "")),
        ("5-(3-3)", Grade(1.0, "5+3-3", "")),
        ("3/3*5", Grade(1.0, "5*3/3", "")),
    ],
)
def test_two_threes_are_used_once_each_and_cancel(completion: str, expected: Grade) -> None:
    assert grade_expression(completion, (3, 3, 5), 5) == expected


def test_wrong_answers_that_say_the_same_share_a_key_and_none_votes_for_a_right_one() -> None:
    keys = [
        grade_expression(text, NUMBERS, TARGET).key
        for text in ("3+4*5", "5*4+3", "(4*5)+3=23", "(3+4)*5=36", "(3+4)*5")
    ]
    assert keys[0] == keys[1] == keys[2]
    assert len(set(keys)) == 3


def test_fractions_are_exact() -> None:
    assert grade_expression("8/(3-8/3)", (3, 3, 8, 8), 24).reward == 1.0
    # in floating point 3 * (1/3) is 1 and 49 * (1/49) is not
    assert grade_expression("49*(1/49)", (1, 49, 49), 1).reward == 1.0
    assert grade_expression("1000000*(1000000+1)/1000000", (1, 10**6, 10**6, 10**6), 1000001).reward == 1.0
    assert grade_expression("1000000*(1000000+1)/1000000", (1, 10**6, 10**6, 10**6), 1000000).reward == 0.0


@quick
@given(st.text() | st.text(alphabet=ALPHABET + "= ", max_size=300) | st.text(alphabet="345+*()-", max_size=12))
def test_any_text_gets_a_grade_that_agrees_with_itself(completion: str) -> None:
    grade = grade_expression(completion, NUMBERS, TARGET)
    assert grade.reward in (0.0, 1.0)
    assert (grade.mode is not None) == (grade.reward == 1.0)
    assert grade.reward == 0.0 or grade.reason == ""
    reasons = "empty too_long not_ascii forbidden too_deep syntax wrong_numbers division_by_zero"
    assert grade.reason in ("", *reasons.split())


HOSTILE = {
    "open parentheses": "(" * 10_000_000,
    "closed parentheses": "(" * 5_000_000 + "3" + ")" * 5_000_000,
    "minus signs": "-" * 10_000_000 + "3",
    "powers": "9**" * 3_000_000 + "9",
    "digits": "9" * 10_000_000,
    "blanks": " " * 10_000_000,
    "open tags": "<answer>" * 1_250_000,
    "closed tags": "</answer>" * 1_100_000,
    "pairs of tags": "<answer></answer>" * 600_000,
    "an answer of parentheses": "<answer>" + "(" * 10_000_000 + "</answer>",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_ten_megabytes_are_graded_in_bounded_time(name: str) -> None:
    started = time.perf_counter()
    grade = grade_expression(HOSTILE[name], NUMBERS, TARGET)
    assert time.perf_counter() - started < 5.0
    assert grade in (refused("too_long"), refused("empty"))


@pytest.mark.parametrize("core", ["3", "3 3", "", "3+", "3)(", "3*-", "-3"])
def test_the_deepest_texts_that_are_parsed_take_no_time_and_no_stack(core: str) -> None:
    started = time.perf_counter()
    for depth in range(65):
        for text in (
            "(" * depth + core + ")" * depth,
            "(" * depth + core,
            "-(" * (depth // 2) + core,
            "3-" * depth + core,
        ):
            assert grade_expression(text, NUMBERS, TARGET).reward == 0.0
    assert time.perf_counter() - started < 20.0


def test_the_last_closed_answer_is_graded_and_the_whole_text_without_one() -> None:
    assert answer_text(" 3 ") == "3"
    assert answer_text("a<answer>1</answer>b<answer> 2 </answer>c") == "2"
    assert answer_text("<answer>1</answer>2</answer>") == "1</answer>2"
    assert answer_text("</answer>3") == "</answer>3"


@pytest.mark.parametrize(
    ("shape", "text"),
    [((3, 12), "(12+11)*10"), ((3, 9), "9/(8-7)"), ((4, 9), "(9+8)*(7-6)"), ((4, 10), "(10+8)*(9-6)")],
)
def test_the_longest_answer_has_two_parentheses_for_each_number_beyond_two(shape: tuple[int, int], text: str) -> None:
    numbers, largest = shape
    assert len(text) <= longest_answer(*shape) == numbers * len(str(largest)) + numbers - 1 + 2 * (numbers - 2)


def test_a_spec_survives_its_text_form() -> None:
    spec = CountdownSpec((3, 4, 5), 35)
    assert parse_spec(spec.to_json()) == spec
    assert spec.to_json() == '{"numbers":[3,4,5],"target":35}'
    assert parse_spec('{"numbers": [5, 3, 4], "target": 35}') == spec
    assert grade_countdown("5*(3+4)", spec.to_json()) == RIGHT


GOOD = {"numbers": [3, 4, 5], "target": 35}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"numbers": 3}, "not a verifier spec"),
        ({"numbers": "345"}, "not a verifier spec"),
        ({"numbers": [3, 4, True]}, "not a verifier spec"),
        ({"numbers": [3, 4, 5.0]}, "not a verifier spec"),
        ({"numbers": [3]}, "is no problem"),
        ({"numbers": []}, "is no problem"),
        ({"numbers": [1] * 7}, "is no problem"),
        ({"numbers": [0, 4, 5]}, "is no problem"),
        ({"numbers": [3, 4, 10**6 + 1]}, "is no problem"),
        ({"target": 0}, "is no problem"),
        ({"target": None}, "not a verifier spec"),
        ({"target": "35"}, "not a verifier spec"),
    ],
)
def test_a_broken_spec_is_reported_as_a_fault_of_the_data(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        grade_countdown("(3+4)*5", json.dumps({**GOOD, **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "{}", "[" * 100_000])
def test_text_that_is_no_spec_is_reported_as_a_fault_of_the_data(text: str) -> None:
    with pytest.raises(DataError, match="not a verifier spec"):
        grade_countdown("(3+4)*5", text)

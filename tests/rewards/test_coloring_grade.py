"""Grading of colourings: right, wrong and unreadable completions, and broken specs."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxent_grpo.errors import DataError
from maxent_grpo.rewards.coloring import ColoringSpec, grade_coloring, parse_spec
from maxent_grpo.rewards.grade import Grade

# the path 0-1-2-3 whose first vertex is red: 2 * 2 * 2 right answers
PATH = ColoringSpec(edges=((0, 1), (1, 2), (2, 3)), colors="R???", letters="RGB").to_json()


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("GRG", Grade(1.0, "GRG", "")),
        ("BGB", Grade(1.0, "BGB", "")),
        (" \t\n\r\f\vGRG\n", Grade(1.0, "GRG", "")),
        ("RGB", Grade(0.0, None, "", key="RGB")),
        (" GGB\n", Grade(0.0, None, "", key="GGB")),
        ("", Grade(0.0, None, "empty")),
        (" \n ", Grade(0.0, None, "empty")),
        ("GR", Grade(0.0, None, "wrong_length")),
        ("GRGR", Grade(0.0, None, "wrong_length")),
        ("grg", Grade(0.0, None, "unknown_symbol")),
        ("G R G", Grade(0.0, None, "unknown_symbol")),
        ("GRG.", Grade(0.0, None, "unknown_symbol")),
        ("GRG\nR G", Grade(0.0, None, "unknown_symbol")),
        ("G?G", Grade(0.0, None, "unknown_symbol")),
        ("010", Grade(0.0, None, "unknown_symbol")),
        ("\u0661\u0662\u0663", Grade(0.0, None, "unknown_symbol")),
        ("\uff27\uff32\uff27", Grade(0.0, None, "unknown_symbol")),
        ("\u00a0GRG", Grade(0.0, None, "unknown_symbol")),
        ("GRG\u0000", Grade(0.0, None, "unknown_symbol")),
        ("\ud800RG", Grade(0.0, None, "unknown_symbol")),
        ("GRG" + " " * 64, Grade(1.0, "GRG", "")),
        ("GRG" + " " * 65, Grade(0.0, None, "too_long")),
    ],
)
def test_each_kind_of_completion_gets_its_grade(completion: str, expected: Grade) -> None:
    assert grade_coloring(completion, PATH) == expected


@given(st.text())
def test_any_text_gets_a_grade_that_agrees_with_itself(completion: str) -> None:
    grade = grade_coloring(completion, PATH)
    assert grade.reward in (0.0, 1.0)
    assert (grade.mode is not None) == (grade.reward == 1.0)
    assert (grade.key is not None) == (grade.reason == "")
    assert grade.reason in ("", "empty", "unknown_symbol", "wrong_length", "too_long")
    assert grade.reward == 0.0 or grade.reason == ""


@given(st.text(alphabet="RGB", min_size=3, max_size=3))
def test_a_well_formed_answer_is_right_exactly_when_neighbours_differ(completion: str) -> None:
    path = "R" + completion
    right = all(left != following for left, following in itertools.pairwise(path))
    assert grade_coloring(completion, PATH) == Grade(float(right), completion if right else None, "", completion)


@pytest.mark.parametrize("unit", ["R", " ", "RGB ", "\u00e9", "(" * 7])
def test_ten_megabytes_are_graded_in_less_than_a_second(unit: str) -> None:
    text = unit * (10_000_000 // len(unit))
    started = time.perf_counter()
    grade = grade_coloring(text, PATH)
    assert time.perf_counter() - started < 1.0
    assert grade == Grade(0.0, None, "too_long")


def test_a_spec_survives_its_text_form() -> None:
    spec = ColoringSpec(edges=((0, 2), (1, 3)), colors="?R?B", letters="RGB")
    assert parse_spec(spec.to_json()) == spec
    assert spec.hidden == (0, 2)


GOOD = {"edges": [[0, 1], [1, 2]], "visible": {"0": "R"}, "hidden": [1, 2], "num_colors": 3, "letters": "RGB"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"edges": [[0, 7]]}, "edges"),
        ({"edges": [[1, 0]]}, "edges"),
        ({"edges": [[0, 1], [0, 1]]}, "edges"),
        ({"edges": [[0, 1, 2]]}, "not a verifier spec"),
        ({"edges": [[0, True]]}, "not a verifier spec"),
        ({"edges": 3}, "not a verifier spec"),
        ({"visible": {"0": "Q"}}, "visible colours"),
        ({"visible": {"x": "R"}}, "not a verifier spec"),
        ({"visible": ["R"]}, "not a verifier spec"),
        ({"hidden": [1]}, "edges"),
        ({"hidden": [2, 1]}, "do not divide"),
        ({"hidden": [1, 1]}, "do not divide"),
        ({"hidden": []}, "do not divide"),
        ({"num_colors": 4}, "letters"),
        ({"letters": "RRB"}, "letters"),
        ({"letters": "R?B"}, "letters"),
        ({"letters": None}, "letters"),
        ({"visible": {"0": "R", "1": "R"}, "hidden": [2]}, "one colour"),
    ],
)
def test_a_broken_spec_is_reported_as_a_fault_of_the_data(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        grade_coloring("GB", json.dumps({**GOOD, **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "{}", "[" * 100_000])
def test_text_that_is_no_spec_is_reported_as_a_fault_of_the_data(text: str) -> None:
    with pytest.raises(DataError, match="not a verifier spec"):
        grade_coloring("GB", text)


def test_the_unchanged_spec_of_the_broken_ones_is_good() -> None:
    assert grade_coloring("GB", json.dumps(GOOD)) == Grade(1.0, "GB", "")


def test_a_right_answers_key_is_its_mode() -> None:
    assert Grade(1.0, "GRG", "").key == "GRG"
    assert Grade(0.0, None, "").key is None
    with pytest.raises(ValueError, match="got key 'grg' and mode 'GRG'"):
        Grade(1.0, "GRG", "", key="grg")

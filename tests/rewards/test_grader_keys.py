"""Keys of answers, answers that cannot be graded against, and tolerances."""

from __future__ import annotations

import subprocess
import sys

import pytest

from maxent_grpo.errors import DataError
from maxent_grpo.rewards.graders import GRADERS, numeric_grader


@pytest.mark.parametrize(
    "texts",
    [
        ["0.5", "1/2", "\\frac12", "\\dfrac{1}{2}", "50\\%", "\\frac{2}{4}", "x=0.5", ".5 \\text{ cm}"],
        ["-3", "\u22123", "-3.0", "- 3"],
        ["\\sqrt{8}", "2\\sqrt{2}", "2 \\cdot \\sqrt2"],
        ["(x+1)^2", "x^2+2x+1", "1+x(x+2)"],
        ["\\{1,2\\}", "2, 1", "1 \\text{ and } 2", "\\{2,1,1\\}"],
        ["x<2", "2>x", "(-\\infty,2)"],
        ["\\pm\\sqrt2", "\\sqrt{2}, -\\sqrt{2}"],
        ["\\text{Blue}", "blue"],
    ],
)
def test_equal_answers_have_one_key_right_or_wrong(texts: list[str]) -> None:
    boxes = [f"\\boxed{{{text}}}" for text in texts]
    wrong = GRADERS["math"].many(boxes, ["17"] * len(texts))
    assert [grade.reason for grade in wrong] == [""] * len(texts)
    assert len({grade.key for grade in wrong}) == 1
    right = GRADERS["math"].many(boxes, [texts[0]] * len(texts))
    assert [grade.reward for grade in right] == [1.0] * len(texts)
    assert {grade.key for grade in right} == {right[0].mode}


def test_different_answers_have_different_keys() -> None:
    texts = [
        "1",
        "2",
        "-1",
        "0.5",
        "(1,2)",
        "(2,1)",
        "[1,2)",
        "\\{1,2\\}",
        "\\sqrt2",
        "x",
        "X",
        "x+1",
        "X+1",
        "blue",
        "101_2",
        "\\infty",
    ]
    keys = [grade.key for grade in GRADERS["math"].many([f"\\boxed{{{text}}}" for text in texts], ["17"] * len(texts))]
    assert None not in keys
    assert len(set(keys)) == len(texts)


@pytest.mark.parametrize(("text", "answer"), [("y=5", "x=5"), ("3!", "6"), ("1+1", "2")])
def test_a_wrong_answer_never_shares_the_right_one_s_key(text: str, answer: str) -> None:
    wrong, right = GRADERS["math"].many([f"\\boxed{{{text}}}", f"\\boxed{{{answer}}}"], [answer] * 2)
    assert wrong.reward == 0.0
    assert right.reward == 1.0
    assert wrong.key != right.key


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        *(
            ("math", text)
            for text in (
                "",
                "5)",
                "\\frac{1}{2}+",
                "\\boxed{1}\\boxed{2}",
                "1/0",
                "\\phantom{5}",
                "1 2",
                "10^{10^{10}}",
            )
        ),
        *(("numeric", text) for text in ("", "seven", "7 or 8", "x", "1/0")),
        *(("choice", text) for text in ("", "AB", "Q", "A or B", "the first")),
        ("exact", " "),
    ],
)
def test_an_answer_that_cannot_be_graded_against_is_a_fault_of_the_data(name: str, answer: str) -> None:
    with pytest.raises(DataError) as raised:
        GRADERS[name]("\\boxed{7}", answer)
    assert repr(answer) in str(raised.value)
    with pytest.raises(DataError):
        GRADERS[name].check(answer)


@pytest.mark.parametrize(
    ("absolute", "relative", "text", "answer", "reward"),
    [
        (0.0, 0.0, "3.14", "3.14159", 0.0),
        (0.01, 0.0, "3.14", "3.14159", 1.0),
        (0.001, 0.0, "3.14", "3.14159", 0.0),
        (0.5, 0.0, "7.5", "7", 1.0),
        (0.5, 0.0, "7.500001", "7", 0.0),
        (0.0, 0.01, "99", "100", 1.0),
        (0.0, 0.01, "98.9", "100", 0.0),
        (0.0, 0.01, "-99", "-100", 1.0),
        (0.0, 0.01, "0.001", "0", 0.0),
        (0.0, 0.0, "1e400", "1e400", 1.0),
    ],
)
def test_a_tolerance_is_absolute_or_relative_to_the_answer(
    absolute: float, relative: float, text: str, answer: str, reward: float
) -> None:
    grade = numeric_grader(absolute, relative)(text, answer)
    assert grade.reward == reward
    assert grade.key == (numeric_grader()(answer, answer).key if reward else grade.key)


def test_the_table_of_graders_is_known_without_the_mathematics_library() -> None:
    program = (
        "import sys; from maxent_grpo.rewards.graders import GRADERS; "
        "print(GRADERS['math']('7', '7').reward, sorted(GRADERS), {'sympy', 'math_verify', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1.0 ['choice', 'exact', 'math', 'numeric'] set()\n"

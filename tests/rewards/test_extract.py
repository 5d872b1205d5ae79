"""Finding the answer in a completion: which part counts, what refuses to be one, and the time it takes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.properties import quick

from maxent_grpo.rewards.extract import MAX_COMPLETION, AnswerPart, extract, stated_answer
from maxent_grpo.rewards.graders import GRADERS, on_part

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("part", "completion", "text", "reason"),
    [
        ("whole", " 7 \n", "7", ""),
        ("whole", "<think>8</think> 7", "<think>8</think> 7", ""),
        ("whole", " ", "", "empty"),
        ("tags", "<answer> 7 </answer>", "7", ""),
        ("tags", "8 <answer>7</answer> 9", "7", ""),
        ("tags", "<answer>8<answer>7</answer>", "7", ""),
        ("tags", "<answer>7</answer> <answer> 7 </answer>", "7", ""),
        ("tags", "<answer>7</answer> <answer>8</answer>", "", "several"),
        ("tags", "<answer>7</answer> <answer>8", "7", ""),
        ("tags", "<think><answer>8</answer></think><answer>7</answer>", "7", ""),
        ("tags", "<think><answer>7</answer></think>", "", "no_answer"),
        ("tags", "<think><answer>7</answer>", "", "no_answer"),
        ("tags", "</answer>7<answer>", "", "no_answer"),
        ("tags", "\\boxed{7}", "", "no_answer"),
        ("tags", "<answer></answer>", "", "empty"),
        ("boxed", "\\boxed{7}", "7", ""),
        ("boxed", "\\fbox {7}", "7", ""),
        ("boxed", "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", ""),
        ("boxed", "\\boxed{\\{1, 2\\}}", "\\{1, 2\\}", ""),
        ("boxed", "\\boxed{\\}}", "\\}", ""),
        ("boxed", "\\boxed{7} = \\boxed{ 7. }", "7.", ""),
        ("boxed", "\\boxed{\\dfrac{1}{2}} \\boxed{\\frac{1}{2}}", "\\frac{1}{2}", ""),
        ("boxed", "\\boxed{7} \\boxed{8}", "", "several"),
        ("boxed", "\\boxed{a \\boxed{b}}", "a \\boxed{b}", ""),
        ("boxed", "\\boxed{7} \\boxed{8", "7", ""),
        ("boxed", "\\boxed7", "", "no_answer"),
        ("boxed", "\\boxed{" + "1" * 1001 + "}", "", "too_long"),
        ("boxed", "7", "", "no_answer"),
    ],
)
def test_the_named_part_of_a_completion_is_its_answer(part: str, completion: str, text: str, reason: str) -> None:
    assert extract(completion, part) == (text, reason)


@pytest.mark.parametrize(
    ("completion", "text", "reason"),
    [
        ("7", "7", ""),
        ("<answer>so \\boxed{7}</answer>", "7", ""),
        ("<answer>the answer is 7</answer>", "7", ""),
        ("#### 7\n", "7", ""),
        ("The answer is 7.5. That is all.", "7.5", ""),
        ("THE FINAL ANSWER IS: 7, because it is.", "7", ""),
        ("**Answer:** 7", "7", ""),
        ("The answer is\n\n$$7$$", "$$7$$", ""),
        ("The answer is 7. So the answer is 7.", "7.", ""),
        ("The answer is 7. Or the answer is 8.", "", "several"),
        ("The answer is", "", "empty"),
        ("Two\nlines", "Two\nlines", ""),
        ("**7**", "7", ""),
        ("x" * 601, "", "no_answer"),
        ("", "", "empty"),
    ],
)
def test_a_stated_answer_is_found_where_it_is_marked(completion: str, text: str, reason: str) -> None:
    assert stated_answer(completion) == (text, reason)


def test_a_completion_beyond_the_limit_is_refused_unread() -> None:
    completion = "\\boxed{7}" + " " * MAX_COMPLETION
    for part in AnswerPart:
        assert extract(completion, part) == ("", "too_long")
    assert stated_answer(completion) == ("", "too_long")
    for name, grader in GRADERS.items():
        assert grader(completion, "B" if name == "choice" else "7").reason == "too_long"


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "\\boxed{",
            "\\boxed{1}",
            "\\boxed{1}\\boxed{1.}",
            "<answer>",
            "<answer>1</answer>",
            "</answer>",
            "answer is ",
        ),
        *("answer: 1\n", "#", "#### 1\n", "{", "}", "\\", " ", "\n", "<think>", "</think>", "\u0130"),
        *("\\boxed" + " " * 5000, "answer is" + " " * 1000),
    ],
    ids=lambda piece: ascii(piece[:20]),
)
def test_a_million_characters_made_to_be_slow_are_read_in_linear_time(piece: str) -> None:
    completion = (piece * (MILLION // len(piece) + 1))[:MILLION]
    start = time.process_time()
    extract(completion, "tags")
    extract(completion, "boxed")
    stated_answer(completion)
    assert time.process_time() - start < 2.0


@quick
@given(st.text(alphabet="<>/answertihkboxd\\{}#: .7B\n", max_size=80))
def test_no_text_makes_a_grader_raise(completion: str) -> None:
    for name in ("exact", "numeric", "choice"):
        for part in AnswerPart:
            grade = on_part(GRADERS[name], part)(completion, "B" if name == "choice" else "7")
            assert grade.reward in (0.0, 1.0)


def test_an_answer_of_several_lines_is_read_in_a_box_or_tags_or_alone() -> None:
    matrix = "\\begin{pmatrix}\n 1 & 2 \\\\\n 3 & 4\n\\end{pmatrix}"
    right = "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}"
    for part, completion in (
        ("whole", matrix),
        ("tags", f"<answer>{matrix}</answer>"),
        ("boxed", f"\\boxed{{{matrix}}}"),
    ):
        assert on_part(GRADERS["math"], part)(completion, right).reward == 1.0
        assert GRADERS["math"](completion, right).reward == 1.0


def test_a_grader_sees_only_the_part_it_is_shown() -> None:
    completions = ["7 \\boxed{8}", "8 \\boxed{7}", "7", "\\boxed{7}\\boxed{8}"]
    grades = on_part(GRADERS["exact"], "boxed").many(completions, ["7"] * 4)
    assert [(grade.reward, grade.reason) for grade in grades] == [(0, ""), (1, ""), (0, "no_answer"), (0, "several")]

"""The built-in reward terms, by tables of completions and what each is worth."""

from __future__ import annotations

import time
from typing import Any

import pytest
import regex

from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.registry import BUILT_IN, CallSettings, TermSettings, build_terms, overlong_sizes
from maxent_grpo.rewards.term_settings import (
    FormatSettings,
    FormatStyle,
    LengthSettings,
    LengthShape,
    NumericSettings,
    OverlongSettings,
    RegexMatch,
    RegexSettings,
    RepetitionSettings,
    RepetitionUnit,
)
from maxent_grpo.rewards.well_formed import (
    has_one_box,
    has_think_and_answer,
    length_reward,
    overlong_punishment,
    pattern_grade,
    repetition_punishment,
)


def digits(completion: str, answer: str) -> Grade:
    """A task's grader that reads nothing but digits."""
    if not completion.isdigit():
        return Grade(0.0, None, "no_digits")
    return Grade(1.0, completion, "") if completion == answer else Grade(0.0, None, "", key=completion)


def grades(name: str, texts: list[str], answers: list[str] | None = None, **settings: Any) -> list[Grade | None]:
    """What the built-in term says of completions of one token a character."""
    [term] = build_terms({name: 1.0}, CallSettings(), digits, TermSettings(max_completion_len=10, **settings))
    columns = {"answer": answers or ["4"] * len(texts)}
    return term([""] * len(texts), texts, [list(map(ord, text)) for text in texts], columns)


def rewards(name: str, texts: list[str], answers: list[str] | None = None, **settings: Any) -> list[float]:
    return [grade.reward for grade in grades(name, texts, answers, **settings) if grade is not None]


THOUGHT = "<think>2 and 2</think>\n<answer>4</answer>"


@pytest.mark.parametrize(
    ("text", "is_well_formed"),
    [
        (THOUGHT, True),
        (f"  {THOUGHT}\n", True),
        ("<think></think><answer></answer>", True),
        ("<answer>4</answer><think>2 and 2</think>", False),
        ("<think>a<answer>b</think>c</answer>", False),
        (THOUGHT + THOUGHT, False),
        ("<think>a<think>b</think><answer>4</answer>", False),
        ("<think>a</think><answer>4</answer><answer>5</answer>", False),
        ("<think>a</think><answer>4", False),
        ("So: " + THOUGHT, False),
        ("<think>a</think> so <answer>4</answer>", False),
        (THOUGHT + " or 5", False),
        ("<THINK>a</THINK><answer>4</answer>", False),
        ("", False),
    ],
)
def test_thinking_and_answer_stand_once_and_in_order(text: str, is_well_formed: bool) -> None:
    assert has_think_and_answer(text) is is_well_formed


@pytest.mark.parametrize(
    ("text", "is_well_formed"),
    [
        (r"so \boxed{4}", True),
        (r"\boxed{\frac{1}{2}} is it", True),
        (r"\boxed{4} or \boxed{5}", False),
        (r"\boxed{}", False),
        (r"\boxed{ }", False),
        (r"\boxed{4", False),
        ("boxed 4", False),
    ],
)
def test_one_box_that_holds_something(text: str, is_well_formed: bool) -> None:
    assert has_one_box(text) is is_well_formed


def test_the_format_is_the_tasks_or_one_of_tags_or_a_box() -> None:
    texts = ["4", "5", "four", THOUGHT, r"\boxed{4}"]
    for style, expected in {
        FormatStyle.task: [1, 1, 0, 0, 0],
        FormatStyle.think_answer: [0, 0, 0, 1, 0],
        FormatStyle.boxed: [0, 0, 0, 0, 1],
    }.items():
        assert rewards("format", texts, format=FormatSettings(style)) == expected, style


def test_a_tag_that_the_prompt_has_opened_counts() -> None:
    settings: dict[str, Any] = {"format": FormatSettings(FormatStyle.think_answer), "assistant_prefix": "<think>\n"}
    assert rewards("format", [THOUGHT.removeprefix("<think>"), THOUGHT], **settings) == [1.0, 0.0]


def test_terms_against_the_answer_name_the_mode() -> None:
    right, wrong = grades("task", ["4", "5"])
    assert right == Grade(1.0, "4", "")
    assert wrong == Grade(0.0, None, "", key="5")
    for name in ("exact", "numeric", "math"):
        right, wrong = grades(name, ["4", "5"])
        assert right is not None, name
        assert wrong is not None, name
        assert (right.reward, right.mode, wrong.reward, wrong.mode) == (1.0, right.key, 0.0, None), name
        assert right.mode is not None, name
    assert rewards("choice", ["B", "(B)", "C"], ["B", "B", "B"]) == [1.0, 1.0, 0.0]


def test_terms_against_the_answer_see_the_part_that_holds_it() -> None:
    texts = ["<think>5</think><answer>4</answer>", "4", "<answer>4</answer><answer>5</answer>"]
    for name in ("exact", "numeric", "math"):
        found = grades(name, texts, answer_in="tags")
        assert [(grade.reward, grade.reason) for grade in found if grade] == [
            (1.0, ""), (0.0, "no_answer"), (0.0, "several"),
        ], name  # fmt: skip


def test_a_number_may_be_off_by_the_wider_tolerance() -> None:
    texts, answers = ["100", "101", "102", "106"], ["100"] * 4
    for absolute, relative, expected in (
        (0.0, 0.0, [1, 0, 0, 0]),
        (1.0, 0.0, [1, 1, 0, 0]),
        (0.0, 0.02, [1, 1, 1, 0]),
        (1.0, 0.05, [1, 1, 1, 0]),
    ):
        settings = NumericSettings(absolute, relative)
        assert rewards("numeric", texts, answers, numeric=settings) == expected, settings


def test_a_pattern_matches_anywhere_or_the_whole() -> None:
    texts = ["ab12", "12", "ab"]
    assert rewards("regex", texts, regex=RegexSettings(r"\d+")) == [1.0, 1.0, 0.0]
    assert rewards("regex", texts, regex=RegexSettings(r"\d+", RegexMatch.whole)) == [0.0, 1.0, 0.0]


def test_a_search_that_backtracks_without_end_is_left_and_counted() -> None:
    began = time.monotonic()
    grade = pattern_grade(regex.compile(r"(a|aa)+$"), "a" * 60 + "c", match=RegexMatch.anywhere, time_limit=0.02)
    assert (grade.reward, grade.reason) == (0.0, "too_slow")
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (LengthShape.near, [0.0, 0.0, 0.5, 1.0, 0.75, 0.0]),
        (LengthShape.at_most, [1.0, 1.0, 1.0, 1.0, 0.75, 0.0]),
        (LengthShape.at_least, [0.0, 0.0, 0.5, 1.0, 1.0, 1.0]),
    ],
)
def test_length_falls_from_its_target(shape: LengthShape, expected: list[float]) -> None:
    lengths = [0, 6, 8, 10, 11, 14]
    assert [length_reward(n, target=10, width=4, shape=shape) for n in lengths] == expected
    texts = ["x" * n for n in lengths]
    assert rewards("length", texts, length=LengthSettings(10, 4, shape)) == expected


def test_overlong_is_dapos_soft_punishment() -> None:
    from trl.rewards import get_soft_overlong_punishment

    lengths = [0, 79, 80, 81, 90, 99, 100, 101]
    ours = [overlong_punishment(n, limit=100, buffer=20) for n in lengths]
    assert ours == pytest.approx([0, 0, 0, -0.05, -0.5, -0.95, -1, -1], abs=1e-12)
    theirs = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    assert ours == pytest.approx(theirs(completion_ids=[[1] * n for n in lengths]), abs=1e-12)


def test_overlong_takes_a_fifth_of_the_longest_completion() -> None:
    assert overlong_sizes(OverlongSettings(), 20480) == (20480, 4096)
    assert overlong_sizes(OverlongSettings(), 3) == (3, 1)
    assert overlong_sizes(OverlongSettings(buffer=4, limit=8), 100) == (8, 4)
    assert rewards("overlong", ["x" * n for n in (8, 9, 10)]) == [0.0, -0.5, -1.0]


@pytest.mark.parametrize(
    ("units", "size", "expected"),
    [([1, 2, 3, 4], 2, 0.0), ([5, 5, 5, 5, 5], 2, -0.75), ([1, 2, 1, 2, 1], 2, -0.5), ([1], 2, 0.0), ([], 1, 0.0)],
)
def test_repetition_is_the_share_of_runs_seen_before(units: list[int], size: int, expected: float) -> None:
    assert repetition_punishment(units, ngram_size=size) == expected


def test_repetition_counts_tokens_or_words() -> None:
    text = "to be or not to be"
    words = RepetitionSettings(ngram_size=2, unit=RepetitionUnit.words)
    assert rewards("repetition", [text], repetition=words) == [4 / 5 - 1]
    assert rewards("repetition", ["abcab"], repetition=RepetitionSettings(ngram_size=2)) == [3 / 4 - 1]


def test_every_built_in_term_can_be_built_and_takes_any_text() -> None:
    settings = TermSettings(regex=RegexSettings("x"), max_completion_len=5)
    terms = build_terms(dict.fromkeys(BUILT_IN, 1.0), CallSettings(), digits, settings)
    assert [term.name for term in terms] == list(BUILT_IN)
    texts = ["", "\x00", "<think>" * 50, "\u2212" * 40, "\\boxed{" * 50, "9" * 400, "\ud800"]
    for term in terms:
        answer = "B" if term.name == "choice" else "4"
        graded = term([""] * 7, texts, [[1] * n for n in range(7)], {"answer": [answer] * 7})
        assert None not in graded, term.name

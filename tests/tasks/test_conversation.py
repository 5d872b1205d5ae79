"""From a row to its conversation: template, system turn, examples, and rows that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maxent_grpo.config.data import ColoringDataConfig, Example
from maxent_grpo.config.prompt_template import fields_of, filled
from maxent_grpo.errors import DataError
from maxent_grpo.tasks.base import TaskRow
from maxent_grpo.tasks.conversation import (
    PromptStyle,
    as_conversation,
    conversation_of,
    prompt_style,
    question_of,
    read_examples,
)


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def system(content: str) -> dict[str, str]:
    return {"role": "system", "content": content}


def row(*messages: dict[str, str], **columns: Any) -> TaskRow:
    return TaskRow("a-row", list(messages), "4", columns)


def test_a_row_alone_is_its_own_turns() -> None:
    turns = [system("Add."), user("1+1"), assistant("2"), user("2+2")]
    assert conversation_of(row(*turns), PromptStyle()) == turns
    assert as_conversation("2+2") == [user("2+2")]


def test_system_turn_and_examples_come_first_and_the_rows_own_system_turn_wins() -> None:
    style = PromptStyle(system_prompt="Be brief.", examples=({"question": "1+1", "answer": "2"},))
    shown = [user("1+1"), assistant("2")]
    assert conversation_of(row(user("2+2")), style) == [system("Be brief."), *shown, user("2+2")]
    assert conversation_of(row(system("Add."), user("2+2")), style) == [system("Add."), *shown, user("2+2")]


def test_a_template_takes_the_last_question_the_examples_and_the_columns() -> None:
    examples = ({"question": "1+1", "answer": "2", "unit": "m"},)
    style = PromptStyle(template="{prompt} in {unit}? {{1}}", examples=examples)
    asked = row(user("first"), assistant("yes"), user("2+2"), unit="km")
    assert conversation_of(asked, style) == [
        *(user("1+1 in m? {1}"), assistant("2")),
        *(user("first"), assistant("yes"), user("2+2 in km? {1}")),
    ]
    assert question_of(asked, style)[-1] == user("2+2 in km? {1}")


def test_a_template_can_make_the_question_out_of_columns_alone() -> None:
    assert conversation_of(row(a=1, b="{prompt}"), PromptStyle(template="{a} and {b}")) == [user("1 and {prompt}")]


@pytest.mark.parametrize("template", ["{prompt.__class__}", "{prompt[0]}", "{prompt!r}", "{prompt:>9}", "{}", "{0.a}"])
def test_a_template_names_columns_and_reaches_nothing_else(template: str) -> None:
    with pytest.raises(ValueError, match="is not the plain name of a column"):
        fields_of(template)


def test_names_and_values_of_templates() -> None:
    assert fields_of("{b} {prompt} {b} {{c}} {last name}") == ["b", "prompt", "last name"]
    assert filled("{a}{{{a}}}", {"a": "{a}"}) == "{a}{{a}}"


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(DataError, match=r"data.prompt_template names level, but row a-row has only unit, prompt"):
        conversation_of(row(user("2+2"), unit="m"), PromptStyle(template="{prompt} {level}"))
    style = PromptStyle(template="{prompt} {unit}", examples=({"question": "1+1", "answer": "2"},))
    with pytest.raises(DataError, match=r"data.prompt_template names unit, but example 1 has only"):
        conversation_of(row(user("2+2"), unit="m"), style)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "has no turn"),
        ([user("1"), assistant("2")], "ends with a turn of assistant"),
        ([system("1")], "ends with a turn of system"),
        ([{"role": "user"}], "turn 1 of its conversation has no text for role and content"),
        ([user("1"), {"role": "user", "content": None}], "turn 2 of its conversation has no text"),
    ],
)
def test_what_is_no_conversation_is_named_by_its_row(messages: list[Any], complaint: str) -> None:
    with pytest.raises(DataError, match=f"row a-row: .*{complaint}"):
        conversation_of(row(*messages), PromptStyle())


def test_examples_of_a_file_come_before_those_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text('{"question": "1+1", "answer": "2", "unit": "m"}\n\n{"question": "1\u2028+2", "answer": "3"}\n')
    config = ColoringDataConfig(
        examples_file=str(path), examples=[Example("2+2", "4")], system_prompt="Add.", chat=False
    )
    style = prompt_style(config)
    assert [example["question"] for example in style.examples] == ["1+1", "1\u2028+2", "2+2"]
    assert style.examples[0]["unit"] == "m"
    assert (style.system_prompt, style.chat, style.assistant_prefix) == ("Add.", False, "")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: is not JSON"),
        ("[]", "line 2: is not an object"),
        ('{"question": "1", "answer": 2}', "line 2: is not"),
    ],
)
def test_a_broken_example_is_named_with_its_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(f'{{"question": "1+1", "answer": "2"}}\n{line}\n')
    with pytest.raises(DataError, match=complaint):
        read_examples(path)

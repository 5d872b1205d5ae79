"""From a row to the conversation that the model continues: its question in its template, behind a system turn and examples.

Only texts here; ``prompt_writer.py`` writes a conversation down in the format of a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maxent_grpo.config.data import DataConfig
from maxent_grpo.config.prompt_template import QUESTION, fields_of, filled
from maxent_grpo.errors import DataError
from maxent_grpo.tasks.base import TaskRow

Conversation = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """What surrounds a row's question, and how it is written; see ``DataConfig``."""

    system_prompt: str | None = None
    template: str | None = None
    examples: tuple[Mapping[str, Any], ...] = ()
    """Each with ``question``, ``answer`` and the columns that the template names."""
    assistant_prefix: str = ""
    chat: bool = True
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


def prompt_style(config: DataConfig) -> PromptStyle:
    """The style that the settings ask for.

    Raises:
        DataError: the file of examples holds something else.
    """
    written = [] if config.examples_file is None else read_examples(Path(config.examples_file))
    return PromptStyle(
        system_prompt=config.system_prompt,
        template=config.prompt_template,
        examples=(*written, *({"question": item.question, "answer": item.answer} for item in config.examples)),
        assistant_prefix=config.assistant_prefix,
        chat=config.chat,
        chat_template_kwargs=dict(config.chat_template_kwargs),
    )


def read_examples(path: Path) -> list[dict[str, Any]]:
    """The examples of a file of JSON lines; blank lines are nothing.

    Raises:
        DataError: a line is no object with texts for ``question`` and ``answer``; names the line.
    """
    examples: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"data.examples_file={path}, line {number}: is not JSON ({error}); correct the line"
            ) from error
        parts = [entry.get(name) if isinstance(entry, dict) else None for name in ("question", "answer")]
        if not all(isinstance(part, str) and part.strip() for part in parts):
            raise DataError(
                f"data.examples_file={path}, line {number}: is not an object with texts for question and answer; write "
                '{"question": "...", "answer": "..."}'
            )
        examples.append(entry)
    return examples


def as_conversation(prompt: str | Sequence[Mapping[str, str]]) -> Conversation:
    """A prompt as turns; a text is one turn of the user."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [dict(turn) for turn in prompt]


def question_of(row: TaskRow, style: PromptStyle) -> Conversation:
    """The row's own turns, the last of them in the template: what tells it from other rows.

    Raises:
        DataError: the turns are no conversation that ends with the user's, or the template names a column that is not there.
    """
    turns = as_conversation(row.messages)
    _check(turns, row, style)
    if style.template is None:
        return turns
    values = {**row.columns, **({QUESTION: turns[-1]["content"]} if turns else {})}
    asked = {"role": "user", "content": _filled(style.template, values, f"row {row.row_id}")}
    return [*turns[:-1], asked]


def conversation_of(row: TaskRow, style: PromptStyle) -> Conversation:
    """The whole conversation: a system turn, the examples as earlier turns, and the row's own.

    Raises:
        DataError: as ``question_of``; or an example lacks a column that the template names.
    """
    turns = question_of(row, style)
    system = [turns.pop(0)] if turns[0]["role"] == "system" else []
    if not system and style.system_prompt is not None:
        system = [{"role": "system", "content": style.system_prompt}]
    return [*system, *example_turns(style), *turns]


def example_turns(style: PromptStyle) -> Conversation:
    """The examples as turns of user and assistant."""
    turns: Conversation = []
    for number, example in enumerate(style.examples, start=1):
        asked = str(example["question"])
        if style.template is not None:
            asked = _filled(style.template, {**example, QUESTION: asked}, f"example {number}")
        turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": str(example["answer"])}]
    return turns


def _filled(template: str, values: Mapping[str, Any], owner: str) -> str:
    try:
        return filled(template, values)
    except KeyError:
        missing = [name for name in fields_of(template) if name not in values]
        raise DataError(
            f"data.prompt_template names {', '.join(missing)}, but {owner} has only {', '.join(map(str, values)) or 'nothing'}; "
            "name columns that all rows have"
        ) from None


def _check(turns: Conversation, row: TaskRow, style: PromptStyle) -> None:
    if not turns and style.template is not None:
        return
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn.get("role"), str) or not isinstance(turn.get("content"), str):
            raise DataError(
                f"row {row.row_id}: turn {number} of its conversation has no text for role and content; write "
                '{"role": "user", "content": "..."}'
            )
    if not turns or turns[-1]["role"] != "user":
        last = f"ends with a turn of {turns[-1]['role']}" if turns else "has no turn"
        raise DataError(
            f"row {row.row_id}: its conversation {last}, and there is nothing to answer; let it end with a turn of user (what "
            "the answer begins with is data.assistant_prefix)"
        )

"""From a record with named columns to a problem: its question, its right answer, and what reward functions get besides."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

from maxent_grpo.config.contradictions_sources import GIVEN
from maxent_grpo.tasks.base import TaskRow

ROLES = ("system", "user", "assistant")
BOX = "\\boxed{"


class BadRow(ValueError):
    """A record cannot be used; the message says why, without saying where it stands."""


@dataclass(frozen=True, slots=True)
class RowMapping:
    """Which columns of a record hold what."""

    prompt_column: str | None
    """None where a template makes the question of other columns: the conversation is empty until then."""
    answer_column: str
    answer_after: str | None = None
    answer_boxed: bool = False
    columns: Sequence[str] | None = None
    """Columns kept beside question and answer; None keeps all."""

    def check(self, record: Mapping[str, Any], unreadable: Callable[[str], str]) -> str:
        """Why the record cannot be used; empty if it can. ``unreadable`` says why an answer cannot be graded against."""
        try:
            self._messages(record)
            return unreadable(self._answer(record))
        except BadRow as why:
            return str(why)

    def row(self, record: Mapping[str, Any], place: str, names: Sequence[str]) -> TaskRow:
        """The problem of a record, None in the columns that it does not have.

        ``place`` opens its ``row_id``; ``names`` are the columns of the whole table.

        Raises:
            BadRow: the record cannot be used.
        """
        kept = {name: record.get(name) for name in names} if self.columns is None else self._chosen(record)
        columns = {name: value for name, value in kept.items() if name not in GIVEN}
        row_id = f"{place}-{self._digest(record)}"
        return TaskRow(row_id, self._messages(record), self._answer(record), columns)

    def absent(self, record: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
        """The sentence of every column that the table, of which ``record`` is a sample, does not have."""
        settings = {"data.answer_column": self.answer_column}
        if self.prompt_column is not None:
            settings["data.prompt_column"] = self.prompt_column
        settings |= {f"data.columns entry {name}": name for name in self.columns or ()}
        known = [*names, *_nested_names(record)]
        for setting, column in settings.items():
            if column not in known and column.split(".")[0] not in names:
                guess = _nearest(column, known)
                hint = f"; did you mean {guess}?" if guess else ""
                yield f"{setting}={column}: no such column; there are {', '.join(names)}{hint}"

    def read_columns(self, names: Sequence[str]) -> list[str]:
        """The columns of a table that question and answer need, nested ones by the column they are in."""
        wanted = [self.prompt_column, self.answer_column] if self.prompt_column is not None else [self.answer_column]
        return [name for name in names if any(name in (column, column.split(".")[0]) for column in wanted)]

    def all_columns(self) -> list[str] | None:
        """The columns to keep of a table at all, nested ones by the column they are in; None keeps all."""
        if self.columns is None:
            return None
        wanted = [self.prompt_column, self.answer_column, *self.columns]
        return list(dict.fromkeys(column.split(".")[0] for column in wanted if column is not None))

    def _chosen(self, record: Mapping[str, Any]) -> dict[str, Any]:
        values = {name: _get(record, name) for name in self.columns or ()}
        return {name: None if value is _ABSENT else value for name, value in values.items()}

    def _messages(self, record: Mapping[str, Any]) -> list[dict[str, str]]:
        if self.prompt_column is None:
            return []
        value = value_at(record, self.prompt_column)
        if isinstance(value, str):
            if not value.strip():
                raise BadRow(f"the question in column {self.prompt_column} is empty")
            _refuse_half_characters(value, self.prompt_column)
            return [{"role": "user", "content": value}]
        return conversation(value, self.prompt_column)

    def _answer(self, record: Mapping[str, Any]) -> str:
        text = answer_text(value_at(record, self.answer_column), self.answer_column)
        if self.answer_after is not None:
            _, mark, text = text.rpartition(self.answer_after)
            if not mark:
                raise BadRow(f"the answer in column {self.answer_column} has no {self.answer_after!r}")
        elif self.answer_boxed:
            text = last_box(text, self.answer_column)
        if not text.strip():
            after = f" after {self.answer_after!r}" if self.answer_after else ""
            raise BadRow(f"the answer in column {self.answer_column} is empty{after}")
        return text.strip()

    def _digest(self, record: Mapping[str, Any]) -> str:
        """A hash of what the question and answer columns hold, or all columns, before anything is made of it."""
        if self.prompt_column is None:
            content: list[Any] = [dict(record)]
        else:
            content = [_get(record, self.prompt_column), _get(record, self.answer_column)]
        # text is hashed as it is, so that a number means the same in every kind of file
        text = "\x1e".join(value if isinstance(value, str) else _as_json(value) for value in content)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def conversation(value: Any, column: str) -> list[dict[str, str]]:
    """A conversation as a record holds it, checked; it ends with what the model is to answer.

    Raises:
        BadRow: it is no list of {role, content}, or does not end with a user's turn.
    """
    if not isinstance(value, list) or not value:
        raise BadRow(f"column {column} holds {_kind(value)}, neither text nor a conversation")
    messages: list[dict[str, str]] = []
    for number, turn in enumerate(cast(list[Any], value), 1):
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
            raise BadRow(f"turn {number} of column {column} is no message {{role, content}}")
        role, content = turn["role"], turn.get("content")
        if role not in ROLES:
            raise BadRow(f"turn {number} of column {column} has the role {role!r}; roles are {', '.join(ROLES)}")
        if not isinstance(content, str) or not content.strip():
            raise BadRow(f"turn {number} of column {column} has {_kind(content)} as content, not text")
        more = [name for name, given in turn.items() if name not in ("role", "content") and given is not None]
        if more:
            raise BadRow(f"turn {number} of column {column} has {', '.join(more)} beside role and content")
        _refuse_half_characters(content, column)
        messages.append({"role": role, "content": content})
    if messages[-1]["role"] != "user":
        raise BadRow(f"the conversation in column {column} ends with a turn of {messages[-1]['role']}, not of user")
    return messages


def answer_text(value: Any, column: str) -> str:
    """An answer as text.

    Raises:
        BadRow: it is neither text nor a finite number.
    """
    if isinstance(value, str):
        _refuse_half_characters(value, column)
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)) or not math.isfinite(value):
        raise BadRow(f"the answer in column {column} is {_kind(value)}, neither text nor a number")
    return str(value)


def last_box(text: str, column: str) -> str:
    r"""What the last ``\boxed{...}`` holds, braces nested.

    Raises:
        BadRow: there is none, or it is never closed.
    """
    start = text.rfind(BOX)
    if start < 0:
        raise BadRow(f"the answer in column {column} has no {BOX}...}}")
    depth = 0
    for end in range(start + len(BOX) - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start + len(BOX) : end]
    raise BadRow(f"the answer in column {column} has a {BOX} that is never closed")


def value_at(record: Mapping[str, Any], column: str) -> Any:
    """What a record holds in a column; dots lead into nested records, unless the column's own name has them.

    Raises:
        BadRow: it has no such column.
    """
    value = _get(record, column)
    if value is _ABSENT:
        raise BadRow(f"there is no column {column}")
    return value


class _Absent:
    """Stands for what a record does not have; equal text in every process."""

    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def _get(record: Mapping[str, Any], column: str) -> Any:
    if column in record:
        return record[column]
    value: Any = record
    for name in column.split("."):
        if not isinstance(value, dict) or name not in value:
            return _ABSENT
        value = cast(dict[str, Any], value)[name]
    return value


def _nested_names(record: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}.{inner}"
        for name, value in record.items()
        if isinstance(value, dict)
        for inner in cast(dict[str, Any], value)
    ]


def _nearest(column: str, known: Sequence[str]) -> str | None:
    """The column most like a mistyped one; a nested one also by its last name."""
    by_last = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    found = difflib.get_close_matches(column, [*known, *by_last], n=1)
    return by_last.get(found[0], found[0]) if found else None


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _refuse_half_characters(text: str, column: str) -> None:
    """Half of a surrogate pair, which JSON can write, is no character that a tokenizer could read."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRow(f"column {column} holds half a character (position {error.start + 1})") from error


def _kind(value: Any) -> str:
    """A value's kind in words, for complaints."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return "text" if value.strip() else "empty text"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"the number {value}"
    return {list: "a list", dict: "a record"}.get(type(value), type(value).__name__)

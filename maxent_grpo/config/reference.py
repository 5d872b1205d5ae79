"""docs/config.md, generated from the dataclasses: every group, option and setting with type, default, unit and meaning."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, cast, get_args, get_origin

from omegaconf import MISSING

from maxent_grpo.config.declared import Setting, all_settings, field_types, groups, node_type, options, settings, shown
from maxent_grpo.config.root import RootConfig

HEADER = """\
# Configuration

Every setting, by group and option. An option of a group is chosen with `group=option`, a setting is changed with its
dotted path, as in `python train.py scoring=grpo optimization.learning_rate=1e-4`. An option has the settings of its group,
with the differences listed under it.

This page is written by `python -m maxent_grpo config-docs` from the dataclasses in `maxent_grpo/config/` and
`maxent_grpo/training/types/`; a setting's meaning is the docstring beneath its field.
"""
_UNIT = re.compile(r"\s*\[([^\[\]]+)\](\.?)$")


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table."""

    path: str
    kind: str
    default: str
    unit: str
    meaning: str


def reference() -> str:
    """The text of docs/config.md."""
    parts = [HEADER]
    for group in groups():
        parts += _group(group)
    parts.append("## At the root\n")
    parts.append(_table(root_entries()))
    return "\n".join(parts)


def root_entries() -> list[Entry]:
    """The rows of the settings that belong to no group."""
    return [_entry(setting, RootConfig(), "") for setting in all_settings() if not setting.group]


@cache
def entries(node: type, prefix: str, group: str = "") -> tuple[Entry, ...]:
    """The rows of a dataclass and of the dataclasses inside it."""
    example = node()
    return tuple(_entry(setting, example, prefix) for setting in settings(node, prefix, group))


@cache
def field_docs(node: type) -> dict[str, str]:
    """Field name to the docstring beneath it; a field that a subclass only gives another default keeps its base's."""
    found: dict[str, str] = {}
    for kind in reversed(node.__mro__[:-1]):
        body = cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]).body
        for statement, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                text = _docstring(following)
                if text:
                    found[statement.target.id] = text
    return found


def _docstring(statement: ast.stmt | None) -> str:
    """The text of a statement that is nothing but a string; empty for any other."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return inspect.cleandoc(value) if isinstance(value, str) else ""
    return ""


def _group(group: str) -> Iterator[str]:
    base = cast(type, field_types(RootConfig)[group])
    shared = entries(base, f"{group}.", group)
    about = (inspect.getdoc(inspect.getmodule(base)) or "").splitlines()[0]
    yield f"## {about}\n"
    yield _table(shared)
    for name, node in options(group).items():
        yield f"### `{group}={name}`\n"
        yield " ".join((inspect.getdoc(node) or "").split()) + "\n"
        own = [entry for entry in entries(node, f"{group}.", group) if entry not in shared]
        if own:
            yield _table(own)


def _entry(setting: Setting, example: Any, prefix: str) -> Entry:
    value = example
    for part in setting.path.removeprefix(prefix).split("."):
        value = getattr(value, part)
    text = " ".join(field_docs(setting.owner).get(setting.name, "").split())
    unit = _UNIT.search(text)
    meaning = _UNIT.sub(r"\2", text)
    return Entry(setting.path, type_words(setting.kind), _default(value), unit[1] if unit else "", meaning)


def _default(value: Any) -> str:
    if value == MISSING:
        return "required"
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return "`{" + ", ".join(f"{name}: {shown(inner)}" for name, inner in items) + "}`"
    if isinstance(value, list):
        return "`[" + ", ".join(map(shown, cast(list[Any], value))) + "]`"
    return f"`{shown(value)}`"


def type_words(kind: Any) -> str:
    """A type as the reference names it: `integer or null`, or the choices of an enumeration."""
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join([*(type_words(part) for part in get_args(kind) if part is not type(None)), "null"])
    if get_origin(kind) is dict:
        return f"names to {type_words(get_args(kind)[1])}"
    if get_origin(kind) is list:
        return f"list of {type_words(get_args(kind)[0])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    node = node_type(kind)
    if node is not None:
        return "{" + ", ".join(f"{name}: {type_words(inner)}" for name, inner in field_types(node).items()) + "}"
    return {bool: "true or false", int: "integer", float: "number", str: "text", Any: "any value"}[kind]


def _table(rows: Sequence[Entry]) -> str:
    if not rows:
        return "No settings.\n"
    lines = ["| setting | type | default | unit | meaning |", "|---|---|---|---|---|"]
    for row in rows:
        cells = (f"`{row.path}`", row.kind, row.default, row.unit, row.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"

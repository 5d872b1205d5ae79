"""What can be configured: every option's settings by dotted path, read from the dataclasses."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.store import OPTIONS


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that can be set, under one option of its group; the group is empty for settings at the root."""

    path: str
    kind: Any
    """Its resolved type annotation."""
    owner: type
    """The dataclass that the setting is read from."""
    name: str
    group: str
    option: str


def groups() -> list[str]:
    """The configuration groups, in the order of the root's fields."""
    return [field.name for field in fields(RootConfig) if any(group == field.name for group, _, _ in OPTIONS)]


def options(group: str) -> dict[str, type]:
    """The options of a group: name to dataclass."""
    return {name: node for owner, name, node in OPTIONS if owner == group}


@cache
def field_types(node: type) -> dict[str, Any]:
    """Field name to resolved type annotation, in order of declaration."""
    hints = get_type_hints(node)
    return {field.name: hints[field.name] for field in fields(node)}


def node_type(kind: Any) -> type | None:
    """The type itself if it is a dataclass, a group of settings; None for the type of a single value."""
    return cast(type, kind) if isinstance(kind, type) and is_dataclass(kind) else None


def settings(node: type, prefix: str, group: str = "", option: str = "") -> Iterator[Setting]:
    """The settings of a dataclass and of the dataclasses inside it, depth first."""
    for name, kind in field_types(node).items():
        path = f"{prefix}{name}"
        inner = node_type(kind)
        if inner is not None:
            yield from settings(inner, f"{path}.", group, option)
        else:
            yield Setting(path, kind, node, name, group, option)


@cache
def all_settings() -> tuple[Setting, ...]:
    """Every setting of every option, then those at the root."""
    found = [setting for group, name, node in OPTIONS for setting in settings(node, f"{group}.", group, name)]
    root = [
        Setting(name, kind, RootConfig, name, "", "")
        for name, kind in field_types(RootConfig).items()
        if node_type(kind) is None
    ]
    return (*found, *root)


@cache
def declared_paths() -> tuple[str, ...]:
    """Every dotted path that can be set under some option, the groups themselves included; each once."""
    return tuple(dict.fromkeys([*groups(), *(setting.path for setting in all_settings())]))


def options_with(path: str) -> list[str]:
    """The options under which a dotted path exists, as `group=option`."""
    return [f"{setting.group}={setting.option}" for setting in all_settings() if setting.path == path]


def free_names(kind: Any) -> bool:
    """Whether a type is a dictionary, whose keys are the user's to name."""
    return get_origin(kind) is dict


def kind_at(path: str, chosen: dict[str, type]) -> Any | None:
    """The type that a dotted path has under the chosen options (group to dataclass); None if it is not declared."""
    group, *parts = path.split(".")
    kind: Any = chosen.get(group) or field_types(RootConfig).get(group)
    for part in parts:
        node = node_type(kind)
        if node is not None:
            kind = field_types(node).get(part)
        elif free_names(kind):
            kind = get_args(kind)[1]
            if node_type(kind) is None and not free_names(kind):
                return kind  # the user's name may hold dots, as a file's does
        else:
            return None
    return kind


CHOSEN_BONUS = 0.3
"""What being at hand is worth in ``nearest``, beside a likeness between 0 and 2."""


def nearest(path: str, chosen: dict[str, type] | None = None) -> str | None:
    """The declared path that a mistyped one most likely stands for.

    The last name weighs as much as the whole path, so that both a typo in the name and a missing group are recognised.
    Of similar paths those that exist under the ``chosen`` options (group to dataclass) come first.
    """
    return _nearest(path, tuple(sorted((chosen or {}).items(), key=lambda entry: entry[0])))


@cache
def _nearest(path: str, chosen: tuple[tuple[str, type], ...]) -> str | None:
    parts = path.split(".")
    for depth in range(1, len(parts)):
        if options_with(".".join(parts[:depth])):
            return ".".join(parts[:depth])

    def likeness(candidate: str) -> tuple[float, float]:
        whole = difflib.SequenceMatcher(None, path, candidate).ratio()
        last = difflib.SequenceMatcher(None, parts[-1], candidate.rsplit(".", 1)[-1]).ratio()
        return max(whole, last), whole + last

    known = [candidate for candidate in declared_paths() if len(parts) == 1 or "." in candidate]
    scores = {candidate: likeness(candidate) for candidate in known}
    likely = [candidate for candidate in known if scores[candidate][0] >= 0.7]

    def rank(candidate: str) -> float:
        at_hand = bool(chosen) and kind_at(candidate, dict(chosen)) is not None
        return scores[candidate][1] + (CHOSEN_BONUS if at_hand else 0.0)

    return max(likely, key=rank, default=None)


def forget_options() -> None:
    """Read the table of options anew at the next call: one was added."""
    for known in (field_types, all_settings, declared_paths, _nearest):
        known.cache_clear()


def describe(kind: Any) -> str:
    """What a type accepts, in words: `an integer or null`."""
    if get_origin(kind) in (Union, types.UnionType):
        inner = [part for part in get_args(kind) if part is not type(None)]
        return " or ".join([*(describe(part) for part in inner), "null"])
    if free_names(kind):
        held = get_args(kind)[1]
        each = "" if free_names(held) or node_type(held) is not None else f", each {describe(held)}"
        return "names with values, {name: value}" + each
    if get_origin(kind) is list:
        return f"a list, [...], each entry {describe(get_args(kind)[0])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    node = node_type(kind)
    if node is not None:
        return "a group of settings, " + ", ".join(field_types(node)) + "; set one of them"
    return {bool: "true or false", int: "an integer", float: "a number", str: "text", Any: "any value"}[kind]


def choices(kind: Any) -> list[str]:
    """The names of an enumeration's members, also of an optional one; empty for other types."""
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    enums = [part for part in parts if isinstance(part, type) and issubclass(part, Enum)]
    return [str(member.value) for enum in enums for member in enum]


def shown(value: object) -> str:
    """A value as one writes it on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if is_dataclass(value) and not isinstance(value, type):
        return "{" + ", ".join(f"{field.name}: {shown(getattr(value, field.name))}" for field in fields(value)) + "}"
    if isinstance(value, list):
        items = cast(list[object], value)
        return "[" + ", ".join(map(shown, items)) + "]" if any(map(is_dataclass, items)) else str(items)
    return str(value.value) if isinstance(value, Enum) else str(value)

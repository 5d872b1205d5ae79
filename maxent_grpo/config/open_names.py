"""Names that are the user's to choose, such as those of `reward.terms`: new ones need no + on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from maxent_grpo.config.declared import free_names, groups, kind_at, node_type, options


def with_open_names(overrides: Iterable[str]) -> list[str]:
    """The overrides, those that stand at or below a dictionary of free names marked as additions for Hydra.

    Hydra refuses a name that is not there yet unless the override begins with + or ++. Where every name is allowed that mark
    says nothing, so it is put there; all other settings keep Hydra's refusal. What cannot be read is left to the gates.
    """
    parser = OverridesParser.create()
    return [_as_addition(text, parser) for text in overrides]


def _as_addition(text: str, parser: OverridesParser) -> str:
    if text.startswith("~"):
        return text
    try:
        path = parser.parse_override(text).key_or_group
    except HydraException:
        return text
    group, *parts = path.split(".")
    if group not in groups():
        return text
    for depth in range(1, len(parts) + 1):
        prefix = ".".join([group, *parts[:depth]])
        kinds = [kind_at(prefix, {group: node}) for node in options(group).values()]
        if any(map(_holds_settings, kinds)) and depth < len(parts):
            # a group of settings that is not there yet is made of a dictionary, and not by setting one of its parts
            inner = parts[depth:]
            value = text.partition("=")[2]
            return f"++{prefix}=" + "".join(f"{{{name}: " for name in inner) + value + "}" * len(inner)
        if any(map(free_names, kinds)):
            return text if text.startswith("+") else f"++{text}"
    return text


def _holds_settings(kind: Any) -> bool:
    """Whether a type is a dictionary of groups of settings."""
    return free_names(kind) and node_type(get_args(kind)[1]) is not None

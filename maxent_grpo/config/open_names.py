"""Names that are the user's to choose, such as those of `reward.terms`: new ones need no + on the command line."""

from __future__ import annotations

from collections.abc import Iterable

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from maxent_grpo.config.declared import free_names, groups, kind_at, options


def with_open_names(overrides: Iterable[str]) -> list[str]:
    """The overrides, those that stand at or below a dictionary of free names marked as additions for Hydra.

    Hydra refuses a name that is not there yet unless the override begins with + or ++. Where every name is allowed that mark
    says nothing, so it is put there; all other settings keep Hydra's refusal. What cannot be read is left to the gates.
    """
    parser = OverridesParser.create()
    return [f"++{text}" if _names_freely(text, parser) else text for text in overrides]


def _names_freely(text: str, parser: OverridesParser) -> bool:
    if text.startswith(("+", "~")):
        return False
    try:
        path = parser.parse_override(text).key_or_group
    except HydraException:
        return False
    group, *parts = path.split(".")
    if group not in groups():
        return False
    prefixes = [".".join([group, *parts[:depth]]) for depth in range(1, len(parts) + 1)]
    return any(free_names(kind_at(prefix, {group: node})) for node in options(group).values() for prefix in prefixes)

"""A configuration said as overrides: for a run that was made in Python, so that its record is one that a command line could have left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast

from maxent_grpo.config.declared import options
from maxent_grpo.config.quoting import quoted
from maxent_grpo.config.resolve import chosen_options
from maxent_grpo.config.root import RootConfig

_BY_TIME = re.compile(r"outputs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d")
"""The run directory of a run that names none."""


def as_overrides(config: RootConfig) -> list[str]:
    """The options and values that differ from the default run, as overrides which compose to the configuration."""
    # loading asks every gate, which know of this one's caller
    from maxent_grpo.config.load import load_config

    default = load_config([])
    usual, chosen = chosen_options(default), chosen_options(config)
    said = [f"{group}={option}" for group, option in chosen.items() if option != usual[group]]
    for group, option in chosen.items():
        said += _differences(options(group)[option](), getattr(config, group), group)
    if _BY_TIME.fullmatch(config.run.dir):  # nobody asked for it
        said = [each for each in said if not each.startswith("run.dir=")]
    return said + ([f"seed={config.seed}"] if config.seed != default.seed else [])


def _differences(base: Any, value: Any, path: str) -> Iterator[str]:
    if is_dataclass(value) and not isinstance(value, type) and type(base) is type(value):
        for field in fields(value):
            yield from _differences(getattr(base, field.name), getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, dict) and isinstance(base, dict):
        now, before = cast(dict[str, Any], value), cast(dict[str, Any], base)
        yield from (f"~{path}.{name}" for name in before if name not in now)
        for name, entry in now.items():
            if name not in before:
                yield f"+{path}.{name}={_written(entry)}"
            elif entry != before[name]:
                yield f"{path}.{name}={_written(entry)}"
    elif value != base:
        yield f"{path}={_written(value)}"


def _written(value: Any) -> str:
    """A value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list):
        return "[" + ",".join(map(_written, cast(list[Any], value))) + "]"
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_written(each)}" for name, each in cast(Mapping[str, Any], value).items()) + "}"
    return quoted(value) if isinstance(value, str) else repr(value)

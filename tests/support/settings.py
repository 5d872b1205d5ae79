"""Configurations changed as the command line would, without being composed anew."""

from __future__ import annotations

from copy import deepcopy
from functools import cache, reduce
from typing import Any, get_args, get_origin

import yaml

from maxent_grpo.config.declared import field_types, groups, options
from maxent_grpo.config.load import check_object, load_config
from maxent_grpo.config.root import RootConfig


@cache
def _defaults() -> RootConfig:
    return load_config([])


def changed(*overrides: str) -> RootConfig:
    """The default run with options chosen, `group=option`, and then settings changed, `path=value`; nothing is checked."""
    config, settings = deepcopy(_defaults()), []
    for override in overrides:
        path, _, value = override.partition("=")
        if path in groups():
            setattr(config, path, options(path)[value]())
        else:
            settings.append((path, value))
    for path, value in settings:
        *parents, name = path.split(".")
        node = reduce(getattr, parents, config)
        setattr(node, name, _typed(field_types(type(node))[name], value))
    return config


def checked(*overrides: str) -> RootConfig:
    """The same after every gate.

    Raises:
        ConfigError: with every problem there is.
    """
    return check_object(changed(*overrides))


def _typed(kind: Any, text: str) -> object:
    value = yaml.safe_load(text)
    if value is None or get_origin(kind) in (list, dict):
        return value
    [kind] = [part for part in get_args(kind) if part is not type(None)] or [kind]
    return kind(value)

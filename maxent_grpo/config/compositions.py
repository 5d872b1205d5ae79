"""Hydra's composition in two parts, of which the dear one is done once: the chosen options and presets, then the values.

What Hydra makes of the choices depends on them, on the table of options and on the files in conf/; it is kept under these, and
each composition changes the values of a copy. Hydra itself does both parts, so that results and errors are its own.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache, lru_cache

from hydra import compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from maxent_grpo.config.presets import config_directory
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.store import OPTIONS

CONFIG_NAME = "config"
_KEPT = 32
"""Compositions of choices that are kept; a sweep or a set of tests uses few."""


def compose_parts(overrides: Sequence[str]) -> DictConfig:
    """What ``hydra.compose`` makes of the overrides inside a session of Hydra's.

    Raises:
        HydraException: as ``hydra.compose`` does, also errors of OmegaConf's and of YAML's.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    if any(override.is_hydra_override() or override.is_sweep_override() for override in parsed):
        # a search path brings folders that may change, and a sweep is refused
        return compose(CONFIG_NAME, list(overrides))
    choices = tuple(text for text, override in zip(overrides, parsed, strict=True) if not _sets_a_value(override))
    config = copy.deepcopy(_composed(choices, tuple(OPTIONS), tuple(_files(str(config_directory())))))
    ConfigLoaderImpl._apply_overrides_to_config(  # pyright: ignore[reportPrivateUsage]
        [override for override in parsed if _sets_a_value(override)], config
    )
    return config


@lru_cache(_KEPT)
def _composed(choices: tuple[str, ...], _options: object, _files: object) -> DictConfig:
    return compose(CONFIG_NAME, list(choices))


def _sets_a_value(override: Override) -> bool:
    """Whether an override certainly is of a setting: whatever may be one of a group, or of none, is left to Hydra."""
    name, dot, _ = override.key_or_group.partition(".")
    of_root = name in _root_fields() and (bool(dot) or not _root_fields()[name])
    return of_root and override.package is None and "/" not in override.key_or_group


@cache
def _root_fields() -> dict[str, bool]:
    """The root's fields, and which of them are groups."""
    groups = {group for group, _, _ in OPTIONS}
    return {field.name: field.name in groups for field in fields(RootConfig)}


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Every file below a folder with the time of its last change and its size."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            else:
                state = entry.stat()
                yield entry.path, state.st_mtime_ns, state.st_size

"""The configuration that a run was made with, read back from its config.yaml: every setting, whatever its defaults are now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from maxent_grpo.config.compose import (
    Composition,
    apply_override,
    chosen_kinds,
    sort_overrides,
    undeclared,
)
from maxent_grpo.config.declared import field_types, node_type, options, settings
from maxent_grpo.config.load import check, compose_checked
from maxent_grpo.config.own_modules import unknown_options
from maxent_grpo.config.presets import PRESETS, flatten
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.report.read import CONFIG_FILE, read_config, read_modules, read_options


def recorded_config(run_dir: Path, changes: Mapping[str, Any]) -> RootConfig:
    """The settings of a run, with ``changes`` by dotted path, through the gates that a composed configuration passes.

    Raises:
        DataError: as ``recorded_node``.
        ConfigError: the settings with the changes cannot be run here.
    """
    config = recorded_node(run_dir)
    for path, value in changes.items():
        OmegaConf.update(config, path, value, merge=False)
    return check(config)


def recorded_node(run_dir: Path) -> DictConfig:
    """The settings of a run, not checked.

    Raises:
        DataError: the run's config.yaml is missing, names no options, or has settings that are not declared.
    """
    chosen, content = read_options(run_dir), read_config(run_dir)
    if not chosen:
        raise DataError(f"{run_dir / CONFIG_FILE} does not name the options that the run was composed from")
    unknown = [f"{group}={option}" for group, option in chosen.items() if option not in options(group)]
    if unknown:
        raise DataError(unknown_options(run_dir, unknown, read_modules(run_dir)))
    config = compose_checked([f"{group}={option}" for group, option in chosen.items()])
    kinds = chosen_kinds(config)
    strangers = [path for path, _ in flatten(content) if undeclared(path, kinds)]
    if strangers:
        raise DataError(
            f"{run_dir / CONFIG_FILE} has settings that this version does not: {', '.join(strangers)}; use the version that "
            "the run was made with"
        )
    paths = [each.path for group, node in kinds.items() for each in settings(node, f"{group}.")]
    paths += [name for name, kind in field_types(RootConfig).items() if node_type(kind) is None]
    values = {path: _at(content, path) for path in paths}
    for path, value in values.items():
        if value is not _ABSENT:
            OmegaConf.update(config, path, value, merge=False)
    return config


def apply_overrides(config: DictConfig, overrides: list[str]) -> None:
    """Change settings, such as a run's, in place: first the options that overrides choose, with their defaults, then values.

    Raises:
        ConfigError: with every override that cannot be applied, or chooses a preset.
    """
    presets = [text for text in overrides if text.lstrip("+").startswith(f"{PRESETS}=")]
    if presets:
        raise ConfigError(f"{presets[0]}: a run keeps the settings it was made with; name the settings to change")
    found = Composition(config)
    selected, values, _ = sort_overrides(overrides, found, [])
    for group, name in selected.items():
        config[group] = OmegaConf.structured(options(group)[name])
    for override in values:
        sentence = apply_override(config, override)
        found.problems += [] if sentence is None else [sentence]
    if found.problems:
        raise ConfigError(list(dict.fromkeys(found.problems)))


_ABSENT = object()


def _at(content: Mapping[str, Any], path: str) -> Any:
    node: Any = content
    for name in path.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return _ABSENT
        node = cast(Mapping[str, Any], node)[name]
    return node

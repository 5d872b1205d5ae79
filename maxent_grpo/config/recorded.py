"""The configuration that a run was made with, read back from its config.yaml: every setting, whatever its defaults are now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from maxent_grpo.config.compose import chosen_kinds, flatten, undeclared
from maxent_grpo.config.declared import field_types, node_type, settings
from maxent_grpo.config.load import check, compose_checked
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import DataError
from maxent_grpo.report.read import CONFIG_FILE, read_config, read_options


def recorded_config(run_dir: Path, changes: Mapping[str, Any]) -> RootConfig:
    """The settings of a run, with ``changes`` by dotted path, through the gates that a composed configuration passes.

    Raises:
        DataError: the run's config.yaml is missing, names no options, or has settings that are not declared.
        ConfigError: the settings with the changes cannot be run here.
    """
    chosen, content = read_options(run_dir), read_config(run_dir)
    if not chosen:
        raise DataError(f"{run_dir / CONFIG_FILE} does not name the options that the run was composed from")
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
    known = {path: value for path, value in values.items() if value is not _ABSENT}
    for path, value in (known | dict(changes)).items():
        OmegaConf.update(config, path, value, merge=False)
    return check(config)


_ABSENT = object()


def _at(content: Mapping[str, Any], path: str) -> Any:
    node: Any = content
    for name in path.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return _ABSENT
        node = cast(Mapping[str, Any], node)[name]
    return node

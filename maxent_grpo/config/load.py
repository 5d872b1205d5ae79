"""The gates between what a user writes and a run: compose, declare, agree, preflight.

1. compose (``compose.py``): unknown names and options, wrong types;
2. declare (here): keys that no dataclass declares, settings without a value;
3. agree (``ranges.py``, ``contradictions.py``): values out of range, settings that exclude each other;
4. preflight (``preflight.py``): what only this machine knows, such as whether a file exists.

All problems of a configuration are raised together, in one ``ConfigError``. No gate changes a value, and none imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from maxent_grpo.config.compose import Composition, chosen_kinds, compose_config, undeclared
from maxent_grpo.config.contradictions import contradictions, warnings
from maxent_grpo.config.declared import declared_paths, field_types, groups, nearest, node_type
from maxent_grpo.config.preflight import preflight
from maxent_grpo.config.presets import config_directory, flatten, no_option_chosen
from maxent_grpo.config.ranges import out_of_range
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError

__all__ = [
    "check",
    "check_object",
    "check_values",
    "compose_checked",
    "config_directory",
    "declared_paths",
    "load_config",
    "warnings",
]


def load_config(overrides: list[str], *, config_dir: str | Path | None = None, elsewhere: bool = False) -> RootConfig:
    """The configuration that the overrides ask for, through all four gates.

    Args:
        overrides: as on the command line, such as `scoring=grpo` and `seed=3`.
        config_dir: a further folder that is searched for presets, as with `--config-dir`.
        elsewhere: whether it is for another machine, so that what this one lacks (gate 4) does not matter.

    Raises:
        ConfigError: with every problem there is.
    """
    return _pass_gates(compose_config(overrides, config_dir), elsewhere=elsewhere)


def check(config: DictConfig) -> RootConfig:
    """A composed configuration through gates 2 to 4.

    Raises:
        ConfigError: with every problem there is.
    """
    return _pass_gates(Composition(config))


def check_object(config: RootConfig) -> RootConfig:
    """A configuration made or changed in Python through gates 1 to 4; returns a checked copy.

    Raises:
        ConfigError: with every problem there is; of wrong types, the first.
    """
    try:
        node = OmegaConf.structured(config)
    except OmegaConfBaseException as error:
        raise ConfigError(" ".join(str(error).splitlines()[:1])) from error
    return check(node)


def check_values(config: RootConfig) -> RootConfig:
    """A configuration whose types are known to be right, such as a checked one with other values, through gates 3 and 4.

    Raises:
        ConfigError: with every problem there is.
    """
    problems = _value_problems(config, set())
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return config


def compose_checked(overrides: list[str], *, config_dir: str | Path | None = None) -> DictConfig:
    """A configuration through gates 1 and 2 only, to be looked at.

    Raises:
        ConfigError: it cannot be composed, or holds undeclared keys.
    """
    composition = compose_config(overrides, config_dir)
    problems = composition.problems + [sentence for _, sentence in _undeclared_keys(composition.config)]
    if problems:
        raise ConfigError(problems)
    return composition.config


def _pass_gates(composition: Composition, *, elsewhere: bool = False) -> RootConfig:
    problems, unsettled = composition.problems, composition.unsettled
    strangers = dict(_undeclared_keys(composition.config))
    problems += strangers.values()
    kinds = chosen_kinds(composition.config)
    unsettled |= {*strangers, *(nearest(path, kinds) or path for path in strangers)}
    config = _declared_part(composition.config, set(strangers)) if strangers else composition.config
    root = _as_object(config, problems) if config else None
    if root is not None:
        problems += _value_problems(root, unsettled, elsewhere=elsewhere)
    if root is None or problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return root


def _value_problems(root: RootConfig, unsettled: set[str], *, elsewhere: bool = False) -> list[str]:
    """Gates 3 and 4, the latter unless the run is for elsewhere; silent about values that are known to be wrong: a rule about one would only repeat, or mislead."""
    problems: list[str] = []
    for path, sentence in out_of_range(root):
        if path not in unsettled:
            problems.append(sentence)
            unsettled.add(path)
    later = list(contradictions(root))
    if not elsewhere:
        later += preflight(root)
    return problems + [sentence for sentence in later if not any(path in sentence for path in unsettled)]


def _as_object(config: DictConfig, problems: list[str]) -> RootConfig | None:
    """The dataclasses, or None after adding why they cannot be made to ``problems``."""
    absent = list(_without_value(config))
    problems += absent
    if absent:
        return None
    try:
        return cast(RootConfig, OmegaConf.to_object(config))
    except OmegaConfBaseException as error:
        problems.append(f"{error.full_key}: cannot be resolved ({str(error).splitlines()[0]})")
        return None


def _undeclared_keys(config: DictConfig) -> Iterator[tuple[str, str]]:
    """Dotted path and sentence of every key that no dataclass declares."""
    chosen = chosen_kinds(config)
    content = cast(dict[str, Any], OmegaConf.to_container(config, resolve=False))
    for path, _ in flatten(content):
        sentence = undeclared(path, chosen)
        if sentence:
            yield path, sentence


def _without_value(config: DictConfig) -> Iterator[str]:
    """The sentence of every group without an option and every setting without a value, or removed."""
    chosen = chosen_kinds(config)
    for group in groups():
        if group not in chosen:
            yield no_option_chosen(group)
    for name, kind in field_types(RootConfig).items():
        if name in chosen:
            yield from _absent(config[name], chosen[name], f"{name}.")
        elif node_type(kind) is None:
            yield from _absent_setting(config, name, name)


def _absent(node: DictConfig, kind: type, prefix: str) -> Iterator[str]:
    for name, inner in field_types(kind).items():
        if node_type(inner) is not None and name in node and not OmegaConf.is_interpolation(node, name):
            yield from _absent(node[name], cast(type, OmegaConf.get_type(node, name)), f"{prefix}{name}.")
        else:
            yield from _absent_setting(node, name, f"{prefix}{name}")


def _absent_setting(node: DictConfig, name: str, path: str) -> Iterator[str]:
    if OmegaConf.is_missing(node, name):
        yield f"{path}: has no default and is not set; write {path}=..."
    elif name not in node:
        yield f"{path}: was removed; a setting can be changed, not removed"


def _declared_part(config: DictConfig, strangers: set[str]) -> DictConfig:
    """The configuration without its undeclared keys, which a structured node would not let go of."""
    known = OmegaConf.structured(RootConfig)
    for group, kind in chosen_kinds(config).items():
        known[group] = OmegaConf.structured(kind)
    content = cast(dict[str, Any], OmegaConf.to_container(config, resolve=False))
    for path, value in flatten(content):
        if path not in strangers:
            OmegaConf.update(known, path, value)
    return known

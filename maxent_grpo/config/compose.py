"""Gate 1: composes a configuration through Hydra, and says in one sentence each what it could not take.

Hydra stops at its first error. After one, every override and every entry of the chosen presets is tried on its own against
the composed options, so that all of them are reported; what could be taken is composed, so that later gates see it too.
"""

from __future__ import annotations

import difflib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from hydra import initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from maxent_grpo.config.compositions import compose_parts
from maxent_grpo.config.declared import (
    choices,
    describe,
    free_names,
    groups,
    kind_at,
    nearest,
    node_type,
    options,
    options_with,
    shown,
)
from maxent_grpo.config.names_elsewhere import known_elsewhere
from maxent_grpo.config.open_names import with_open_names
from maxent_grpo.config.presets import (
    PRESETS,
    Preset,
    PresetReader,
    config_directory,
    no_option_chosen,
    no_such_option,
)
from maxent_grpo.config.store import register
from maxent_grpo.errors import ConfigError

_SEARCH_PATH = "hydra.searchpath="


@dataclass
class Composition:
    """What Hydra made of the overrides; with problems, made of those that could be taken."""

    config: DictConfig
    problems: list[str] = field(default_factory=list[str])
    unsettled: set[str] = field(default_factory=set[str])
    """Dotted paths that the problems are about: their values are not what the user meant."""


def compose_config(overrides: list[str], config_dir: str | Path | None = None) -> Composition:
    """Compose; ``config_dir`` is a further folder that is searched for presets, as with `--config-dir`."""
    register()
    overrides, folders = with_search_path(with_open_names(overrides), config_dir)
    with hydra_session():
        try:
            return Composition(compose_parts(overrides))
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError) as error:
            # OmegaConf asserts where a value is set below what is no container
            found = _diagnose(overrides, folders)
            found.problems = found.problems or [in_one_line(error)]
            return found


@contextmanager
def hydra_session() -> Generator[Hydra, None, None]:
    """Hydra with this project's configuration folder, for the time of the block; a session around it is put back after."""
    current = GlobalHydra.instance()
    outer, current.hydra = current.hydra, None
    try:
        with initialize_config_dir(str(config_directory()), job_name="train", version_base="1.3"):
            assert current.hydra is not None
            yield current.hydra
    finally:
        current.hydra = outer


def parse_override(text: str) -> Override:
    """An override as Hydra reads it.

    Raises:
        ConfigError: it is not of the form setting=value.
    """
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        word = text if text.isprintable() else repr(text)
        path, _, value = text.partition("=")
        plain = bool(value) and text.isprintable() and not set(value) & set("'\"[]{}")
        hint = f"; a value with such characters is put in quotes twice: '{path}=\"{value}\"'" if plain else ""
        if value.startswith("~"):
            hint = f"; the shell leaves ~ as it is behind a =: write {path}=$HOME{value[1:]}"
        raise ConfigError(f"{word}: cannot be read as setting=value ({in_one_line(error)}){hint}") from error
    if not override.key_or_group:
        raise ConfigError(f"{text}: the name of the setting is missing before the =")
    return override


def with_search_path(overrides: list[str], config_dir: str | Path | None) -> tuple[list[str], list[Path]]:
    """The overrides with ``config_dir`` on Hydra's search path, and the folders that are searched.

    Hydra takes a single `hydra.searchpath`, so that one among the overrides is merged with the folder.

    Raises:
        ConfigError: the folder does not exist, or the override cannot be read.
    """
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir {config_dir}: is not a folder")
    entries = [] if config_dir is None else [f"file://{Path(config_dir).resolve()}"]
    rest: list[str] = []
    for text in overrides:
        if text.startswith(_SEARCH_PATH):
            value = parse_override(text).value()
            entries += [str(entry) for entry in value] if isinstance(value, list) else [str(value)]
        else:
            rest.append(text)
    folders = [Path(entry.removeprefix("file://")) for entry in entries if not entry.startswith("pkg://")]
    search = [f"{_SEARCH_PATH}{entries}"] if entries else []
    return [*search, *rest], [config_directory(), *folders]


def chosen_presets(overrides: list[str], config_dir: str | Path | None = None) -> list[Preset]:
    """The presets that the overrides select and their parts, in order; what cannot be read is left out, as composing refuses it."""
    overrides, folders = with_search_path(overrides, config_dir)
    parsed = [parse_override(text) for text in overrides]
    reader = PresetReader(folders, in_one_line)
    chosen = [override for override in parsed if override.key_or_group == PRESETS]
    presets = [preset for override in chosen[-1:] for preset in _chosen_presets(override, reader)]
    selected = {
        each.key_or_group: str(each.value()) for each in parsed if each.key_or_group in groups() and _is_choice(each)
    }
    return reader.with_limit(presets, selected)


def chosen_kinds(config: DictConfig) -> dict[str, type]:
    """Group to the dataclass of its chosen option; a group that was removed or never chosen is left out."""
    present = [group for group in groups() if group in config and not OmegaConf.is_missing(config, group)]
    return {group: cast(type, OmegaConf.get_type(config, group)) for group in present}


def undeclared(path: str, chosen: dict[str, type]) -> str | None:
    """The sentence for a dotted path that nothing declares under the chosen options; None if it is declared."""
    if kind_at(path, chosen) is not None:
        return None
    owners = options_with(path)
    if owners:
        return f"{path}: the chosen {path.split('.')[0]} option has no such setting; it belongs to {', '.join(owners)}"
    elsewhere = known_elsewhere(path)
    if elsewhere is not None:
        return f"{path}: no such setting; {elsewhere}"
    guess = nearest(path, chosen)
    if guess is None:
        return f"{path}: no such setting; docs/config.md lists them all"
    return f"{path}: no such setting; did you mean {guess}?"


def _diagnose(overrides: list[str], folders: list[Path]) -> Composition:
    found = Composition(OmegaConf.create())
    selected, values, presets = sort_overrides(overrides, found, folders)
    selection = dict(choice.split("=", 1) for preset in presets for choice in preset.choices) | selected
    try:
        found.config = compose_parts([f"{group}={name}" for group, name in selection.items()])
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        found.problems.append(in_one_line(error))
        return found
    for preset in presets:
        for path, value in preset.entries.items():
            _report(found, path, _change(found.config, path, value), f"{preset.label}: ")
    for override in values:
        _report(found, override.key_or_group, apply_override(found.config, override))
    return found


def _report(found: Composition, path: str, sentence: str | None, prefix: str = "") -> None:
    if sentence is not None:
        found.problems.append(f"{prefix}{sentence}")
        found.unsettled |= {path, nearest(path, chosen_kinds(found.config)) or path}


def sort_overrides(
    overrides: list[str], found: Composition, folders: list[Path]
) -> tuple[dict[str, str], list[Override], list[Preset]]:
    """Good choices of options, overrides of values, and chosen presets; what is neither becomes a problem."""
    selected: dict[str, str] = {}
    values: list[Override] = []
    presets: list[Preset] = []
    reader = PresetReader(folders, in_one_line, found.problems)
    for text in overrides:
        try:
            override = parse_override(text)
        except ConfigError as error:
            found.problems += error.problems
            continue
        group = override.key_or_group
        if override.is_hydra_override():
            continue
        if override.is_sweep_override():
            hint = "text with a comma needs quotes inside those of the shell, 'NAME=\"a, b\"'" if ", " in text else ""
            listed = "a list is written [a,b]"
            found.problems.append(f"{text}: several values make a sweep, which needs -m; {hint or listed}")
        elif group == PRESETS:
            presets += _chosen_presets(override, reader)
        elif group in groups() and _is_choice(override):
            problem = _option_problem(override, list(options(group)))
            if problem:
                _report(found, f"{group}=", problem)
            else:
                selected[group] = str(override.value())
        else:
            values.append(override)
    return selected, values, reader.with_limit(presets, selected)


def _is_choice(override: Override) -> bool:
    """Whether an override of a group chooses its option."""
    return not override.is_delete() and not isinstance(override.value(), dict)


def _option_problem(override: Override, known: list[str]) -> str | None:
    group, value = override.key_or_group, override.value()
    if isinstance(value, list) and group != PRESETS:
        return f"{group}={override.get_value_element_as_str()}: takes one option; {group} has {', '.join(known)}"
    for name in value if isinstance(value, list) else [value]:
        if name not in known:
            return no_such_option(group, shown(name), known)
    return (
        f"{group} is chosen already; write {group}={shown(value)} without the +"
        if override.is_add() or override.is_force_add()
        else None
    )


def _chosen_presets(override: Override, reader: PresetReader) -> list[Preset]:
    value = override.value()
    if value is None:
        return []
    problem = _option_problem(override, reader.names())
    if problem:
        reader.problems.append(problem)
        return []
    names = cast(list[str], value) if isinstance(value, list) else [str(value)]
    return [part for name in names for part in reader.preset(name)]


def apply_override(config: DictConfig, override: Override) -> str | None:
    """Do to a composed configuration what an override asks for; the sentence if that cannot be done."""
    path = override.key_or_group
    if override.is_delete():
        return _remove(config, path)
    if override.package is not None:
        return f"{path}@{override.package}: no such setting; options are chosen as group=option"
    problem = undeclared(path, chosen_kinds(config))
    if problem:
        return problem
    value = cast(Any, override.value())
    exists = OmegaConf.select(config, path, throw_on_missing=False) is not None
    if override.is_add() and exists and not isinstance(value, (dict, list)):
        return f"{path} is set already; write {path}={override.get_value_element_as_str()} without the +"
    if override.is_add() or override.is_force_add():
        with open_dict(config):
            return _change(config, path, value, may_add=True)
    return _change(config, path, value)


def _change(config: DictConfig, path: str, value: Any, may_add: bool = False) -> str | None:
    chosen = chosen_kinds(config)
    problem = undeclared(path, chosen)
    if problem:
        return problem
    parent = path.rpartition(".")[0]
    may_add = may_add or (bool(parent) and free_names(kind_at(parent, chosen)))
    if isinstance(value, dict) and not _names_values(kind_at(path, chosen)):
        changes = [_change(config, f"{path}.{key}", part, may_add) for key, part in cast(dict[str, Any], value).items()]
        return next((change for change in changes if change), None)
    try:
        OmegaConf.update(config, path, value, merge=True, force_add=may_add)
    except OmegaConfBaseException:
        return _wrong_type(path, value, kind_at(path, chosen))
    return None


def _names_values(kind: Any) -> bool:
    """Whether a type is a dictionary of plain values, whose names may hold dots."""
    return free_names(kind) and node_type(get_args(kind)[1]) is None and not free_names(get_args(kind)[1])


def _wrong_type(path: str, value: Any, kind: Any) -> str:
    guess = difflib.get_close_matches(str(value), choices(kind), n=1)
    hint = f"; did you mean {guess[0]}?" if guess else ""
    names = list(cast(dict[Any, Any], value)) if type(cast(object, value)) is dict else list[Any]()
    number = next((name for name in names if not isinstance(name, str)), None)
    if number is not None:  # such as the id of a token
        hint = f"; a name that is a number is written into the path, {path}.{number}=..."
    return f"{path}={shown(value)}: must be {describe(kind)}{hint}"


def _remove(config: DictConfig, path: str) -> str | None:
    if path in groups():
        return no_option_chosen(path)
    parent, _, name = path.rpartition(".")
    owner = OmegaConf.select(config, parent) if parent else config
    if not isinstance(owner, DictConfig) or name not in owner:
        return f"~{path}: there is nothing of that name to remove"
    if kind_at(path, chosen_kinds(config)) is not None and not free_names(kind_at(parent, chosen_kinds(config))):
        return f"~{path}: a setting can be changed, not removed"
    with open_dict(config):
        del owner[name]
    return None


def in_one_line(error: BaseException) -> str:
    """An error of Hydra's or YAML's in one line, without its search path and its advice to force the key in."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else ""
    text = f"{error}\n{cause}"
    noise = ("to append", "see http", "config search path", "provider=", "full_key", "reference_type", "object_type")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(line for line in lines if not line.lower().startswith(noise))[:400]

"""Who set what: for each setting of a composed configuration, the words, file or default that gave it its value."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from maxent_grpo.config.compose import chosen_kinds, chosen_presets, parse_override
from maxent_grpo.config.contradictions import RULES
from maxent_grpo.config.declared import all_settings, declared_paths, field_types, groups, options
from maxent_grpo.config.load import compose_checked
from maxent_grpo.config.presets import PRESETS, Preset
from maxent_grpo.config.reference import entries
from maxent_grpo.config.resumed import with_run_overrides
from maxent_grpo.config.root import RootConfig

ROOT_FILE = "conf/config.yaml"
_DOTTED = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+")


@dataclass(frozen=True, slots=True)
class Composed:
    """A configuration together with all that was said to make it, in the order in which it counts."""

    config: DictConfig
    presets: list[Preset]
    recorded: list[str]
    """Overrides taken over from the run that `checkpoint.resume_from` names."""
    given: list[str]
    """Overrides of the command itself; they win."""

    @property
    def chosen(self) -> dict[str, str]:
        """Group to chosen option."""
        kinds = chosen_kinds(self.config)
        return {group: next(name for name, node in options(group).items() if node is kinds[group]) for group in kinds}

    def value(self, path: str) -> Any:
        """The value of a setting here, interpolations resolved.

        Raises:
            KeyError: the chosen option of its group has no such setting.
        """
        parent, _, name = path.rpartition(".")
        node = OmegaConf.select(self.config, parent) if parent else self.config
        if not isinstance(node, DictConfig) or name not in node:
            raise KeyError(path)
        value = node[name]
        return OmegaConf.to_object(value) if OmegaConf.is_config(value) else value

    def who_chose(self, group: str) -> str:
        """What made the chosen option of a group the chosen one."""
        said = self._said(lambda key, value: key == group and not isinstance(value, dict))
        if said:
            return said
        for preset in reversed(self.presets):
            if f"{group}={self.chosen[group]}" in preset.choices:
                return f"preset {preset.label}"
        return ROOT_FILE

    def who_set(self, path: str) -> str:
        """What gave a setting its value: the command line, a resumed run's, a preset, an option, or its own default."""
        said = self._said(lambda key, value: _concerns(key, path) and (key not in groups() or isinstance(value, dict)))
        if said:
            return said
        for preset in reversed(self.presets):
            if any(_concerns(entry, path) for entry in preset.entries):
                return f"preset {preset.label}"
        group = path.split(".")[0]
        if group not in self.chosen:
            return "default, in RootConfig"
        name = self.chosen[group]
        base, option = (
            defaults(cast(type, field_types(RootConfig)[group]), group),
            defaults(options(group)[name], group),
        )
        setting = next((each for each in option if _concerns(each, path)), path)
        if base.get(setting) != option.get(setting):
            return f"option {group}={name}, chosen by {self.who_chose(group)}"
        owner = next((each.owner for each in all_settings() if each.path == setting), options(group)[name])
        return f"default, in {owner.__name__}"

    def _said(self, concerns: Callable[[str, Any], bool]) -> str | None:
        for texts, whose in ((self.given, "this command line"), (self.recorded, "the command line of the resumed run")):
            for text in reversed(texts):
                override = parse_override(text)
                if override.is_hydra_override() or override.key_or_group == PRESETS:
                    continue
                value = None if override.is_delete() or override.is_sweep_override() else override.value()
                if concerns(override.key_or_group, value):
                    return f"{whose}: {text}"
        return None


def compose_with_origins(given: Sequence[str], config_dir: str | Path | None = None) -> Composed:
    """Compose overrides as training would, and keep what was said.

    Raises:
        ConfigError: they cannot be composed.
    """
    everything = with_run_overrides(given)
    recorded = everything[: len(everything) - len(given)]
    config = compose_checked(everything, config_dir=config_dir)
    return Composed(config, chosen_presets(everything, config_dir), recorded, list(given))


@cache
def defaults(node: type, group: str) -> dict[str, str]:
    """Dotted path to default, as the reference writes it, of every setting of an option or of a group's base."""
    return {entry.path: entry.default for entry in entries(node, f"{group}.", group)}


@cache
def named_together(path: str) -> tuple[str, ...]:
    """The settings that a rule of contradictions reads together with this one."""
    found: set[str] = set()
    for rule in RULES:
        named = set(_DOTTED.findall(inspect.getsource(rule))) & set(declared_paths())
        if path in named:
            found |= named
    return tuple(name for name in declared_paths() if name in found and name != path)


def _concerns(key: str, path: str) -> bool:
    return key == path or key.startswith(f"{path}.") or path.startswith(f"{key}.")

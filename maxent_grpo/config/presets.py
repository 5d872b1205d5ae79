"""Presets: files of settings, the files that they are put together from, and what is wrong in any of them.

A preset may include others of the folders that are searched (`/recipe/data: gsm8k` is ``recipe/data/gsm8k.yaml``), which count
before it. A preset of a language model chooses, through what it includes, a limit of completions (`override /completions: NAME`);
what a sampler takes with that limit stands in ``completions/sampled/NAME_SAMPLER.yaml`` and counts before the preset, what a method
changes with it in ``completions/with/NAME_METHOD.yaml`` and counts after it. Hydra composes all of
this by conf/config.yaml; here it is read once more, for messages that name files and for saying which of them set what.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from maxent_grpo.config.declared import groups, options

PRESETS = "experiment"
COMPLETIONS = "completions"
METHOD_PARTS = f"{COMPLETIONS}/with"
SAMPLER_PARTS = f"{COMPLETIONS}/sampled"
GLOBAL = "@package _global_"
Describe = Callable[[BaseException], str]


def config_directory() -> Path:
    """The folder with config.yaml and the presets: in an installed package ``conf`` inside it, in a checkout ``conf`` beside it."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


@dataclass
class Preset:
    """One file of settings: a preset, or a part of one."""

    label: str
    """Its path as messages name it."""
    choices: list[str]
    """Options that its defaults list selects, as `group=option`."""
    entries: dict[str, Any]
    """Its settings by dotted path."""
    completions: str | None = None
    """The limit of completions that it chooses."""
    is_part: bool = False
    """Whether it was not chosen itself, but included."""


@dataclass
class PresetReader:
    """Reads presets with their parts from the folders that are searched, of which later ones come first."""

    folders: Sequence[Path]
    describe: Describe
    """An error of YAML's in one line."""
    problems: list[str] = field(default_factory=list[str])

    def names(self) -> list[str]:
        """The names of all presets."""
        return sorted({file.stem for folder in self.folders for file in (folder / PRESETS).glob("*.yaml")})

    def preset(self, name: str) -> list[Preset]:
        """A preset behind the files that it includes, in the order in which they count."""
        return list(self._read(f"{PRESETS}/{name}"))

    def with_limit(self, presets: list[Preset], selected: Mapping[str, str]) -> list[Preset]:
        """The files between what the chosen sampler takes with their limit of completions and what the method changes with it."""
        limit = next((each.completions for each in reversed(presets) if each.completions is not None), None)
        if limit is None:
            return presets
        before = self._beside(f"{SAMPLER_PARTS}/{limit}_{chosen_option('generation', presets, selected)}")
        after = self._beside(f"{METHOD_PARTS}/{limit}_{chosen_option('scoring', presets, selected)}")
        return [*before, *presets, *after]

    def _beside(self, name: str) -> list[Preset]:
        return list(self._read(name)) if self._file(name) else []

    def _file(self, name: str) -> Path | None:
        files = (folder / f"{name}.yaml" for folder in reversed(self.folders))
        return next((file for file in files if file.is_file()), None)

    def _read(self, name: str, included_by: str = "") -> Iterator[Preset]:
        file = self._file(name)
        if file is None:
            self.problems.append(f"{included_by}: includes {name}, and there is no file {name}.yaml")
            return
        content = self._content(file)
        if content is None:
            return
        preset = Preset(_label(file), [], {}, is_part=not name.startswith(f"{PRESETS}/"))
        defaults = cast(list[Any], content.pop("defaults", []))
        for item in (cast(dict[str, Any], item) for item in defaults if isinstance(item, dict)):
            for key, value in item.items():
                yield from self._default(preset, key, str(value))
        content.pop("hydra", None)
        preset.entries = dict(flatten(content))
        yield preset

    def _default(self, preset: Preset, key: str, value: str) -> Iterator[Preset]:
        """One entry of a defaults list: an option, a limit of completions, or another file."""
        path = key.removeprefix("override ").strip().partition("@")[0]
        group = path.removeprefix("/")
        if group in groups() and value not in options(group):
            self.problems.append(f"{preset.label}: {no_such_option(group, value, list(options(group)))}")
        elif group in groups():
            preset.choices.append(f"{group}={value}")
        elif path.startswith("/") and not group.startswith("hydra/"):
            if group == COMPLETIONS:
                preset.completions = value
            yield from self._read(f"{group}/{value}", preset.label)

    def _content(self, file: Path) -> dict[str, Any] | None:
        try:
            text = file.read_text(encoding="utf-8")
            content = OmegaConf.create(text)
        except (YAMLError, OmegaConfBaseException, ValueError) as error:
            self.problems.append(f"{_label(file)}: is not valid YAML ({self.describe(error)})")
            return None
        if GLOBAL not in text.split("\n", 1)[0]:
            self.problems.append(f"{_label(file)}: must begin with the line `# {GLOBAL}`")
            return None
        return cast(dict[str, Any], OmegaConf.to_container(content))


def chosen_option(group: str, presets: Sequence[Preset], selected: Mapping[str, str]) -> str:
    """The option of a group under chosen presets and the options that the command line selects."""
    if group in selected:
        return selected[group]
    said = [choice for preset in presets for choice in preset.choices if choice.startswith(f"{group}=")]
    return said[-1].partition("=")[2] if said else default_option(group)


@cache
def default_option(group: str) -> str:
    """The option of a group that conf/config.yaml takes; empty for none."""
    entries = OmegaConf.load(config_directory() / "config.yaml").defaults
    said = [entry[group] for entry in entries if OmegaConf.is_dict(entry) and group in entry]
    return str(said[0]) if said and said[0] is not None else ""


def no_such_option(group: str, name: str, known: list[str]) -> str:
    """The sentence for an option that a group does not have."""
    guess = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {group}={guess[0]}?" if guess else ""
    return f"{group}={name}: no such option; {group} has {', '.join(known) or 'none'}{hint}"


def no_option_chosen(group: str) -> str:
    """The sentence for a group without an option."""
    return f"{group}: no option is chosen; write {group}= and one of {', '.join(options(group))}"


def flatten(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of every leaf of nested dictionaries; an empty dictionary is a leaf."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from flatten(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _label(file: Path) -> str:
    root = config_directory().parent
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)

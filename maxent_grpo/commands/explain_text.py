"""The text of `python -m maxent_grpo explain`: lines for a setting, group, option, preset or metric. No torch."""

from __future__ import annotations

import difflib
import inspect
import itertools
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from maxent_grpo.config.compose import chosen_presets
from maxent_grpo.config.declared import (
    all_settings,
    declared_paths,
    field_types,
    free_names,
    groups,
    nearest,
    options,
    options_with,
    shown,
)
from maxent_grpo.config.load import check
from maxent_grpo.config.names_elsewhere import known_elsewhere
from maxent_grpo.config.presets import PRESETS, Preset, config_directory
from maxent_grpo.config.provenance import Composed, compose_with_origins, defaults, named_together
from maxent_grpo.config.ranges import RANGES
from maxent_grpo.config.reference import Entry, entries, root_entries
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.telemetry.inert import idle_reasons
from maxent_grpo.training.checkpoint.compatibility import Difference
from maxent_grpo.training.metric_table import METRICS, metric_entry, metric_group

_LABEL = 13


def explain(name: str, overrides: Sequence[str] = (), config_dir: str | None = None) -> list[str]:
    """The explanation of a name in the command that the overrides make.

    Raises:
        ConfigError: nothing has that name, or the overrides cannot be composed.
    """
    if "/" in name:
        return _explain_metric(name)
    key, equals, _ = name.partition("=")
    if key == PRESETS:
        return _explain_presets(name, config_dir) if equals else _explain_presets(f"{PRESETS}=", config_dir)
    if equals and key in groups():
        return _explain_option(name, compose_with_origins(overrides, config_dir))
    composed = compose_with_origins([*overrides, *([name] if equals else [])], config_dir)
    return explain_path(key, composed)


def explain_path(name: str, composed: Composed) -> list[str]:
    """The explanation of a setting, or of the settings under a path.

    Raises:
        ConfigError: nothing has that name.
    """
    dictionaries = [setting.path for setting in all_settings() if free_names(setting.kind)]
    if name not in dictionaries and any(path.startswith(f"{name}.") for path in declared_paths()):
        return _explain_group(name, composed)
    return _explain_setting(_full_path(name), composed)


def _full_path(name: str) -> str:
    """The declared path that a name means: itself, an entry of a dictionary, or the one path that ends in it."""
    dictionaries = [setting.path for setting in all_settings() if free_names(setting.kind)]
    if name in declared_paths() or any(name.startswith(f"{path}.") for path in dictionaries):
        return name
    ending = [path for path in declared_paths() if path.endswith(f".{name}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise ConfigError(f"{name}: several settings end so: {', '.join(ending)}")
    elsewhere = known_elsewhere(name)
    if elsewhere is not None:
        raise ConfigError(f"{name}: nothing of that name; {elsewhere}")
    raise _unknown(name, nearest(name), [*declared_paths(), *METRICS])


def _unknown(name: str, guess: str | None, known: Iterable[str]) -> ConfigError:
    near = guess or next(iter(difflib.get_close_matches(name, list(known), n=1)), None)
    hint = f"did you mean {near}?" if near else "docs/config.md and docs/metrics.md list everything there is"
    return ConfigError(f"{name}: nothing of that name; {hint}")


def _explain_setting(path: str, composed: Composed) -> list[str]:
    declared = next(each for each in all_settings() if path == each.path or path.startswith(f"{each.path}."))
    entry = _entry(declared.path, declared.group)
    rows = [("type", entry.kind), ("allowed", str(RANGES[path])) if path in RANGES else ("", "")]
    rows += [("unit", entry.unit), ("default", _defaults(declared.path, declared.group, entry))]
    try:
        value = composed.value(path)
    except KeyError:
        rows += [("here", _absent(path, declared.group, composed))]
    else:
        rows += [("here", _shown(value)), ("set by", composed.who_set(path))]
        rows += _consequences(path, composed)
    meaning = Difference(path, None, None).meaning
    rows.append(("on resume", f"may change: {meaning}" if meaning else "may not change: the run would be another one"))
    rows.append(("see also", ", ".join(named_together(path))))
    return [path, *_paragraph(entry.meaning), "", *_rows(rows)]


def _entry(path: str, group: str) -> Entry:
    """The reference's row of a setting, from its group's base or from the first option that has it."""
    if not group:
        return next(entry for entry in root_entries() if entry.path == path)
    base = cast(type, field_types(RootConfig)[group])
    nodes = [base, *options(group).values()]
    return next(entry for node in nodes for entry in entries(node, f"{group}.", group) if entry.path == path)


def _defaults(path: str, group: str, entry: Entry) -> str:
    text = entry.default.strip("`")
    for name, node in options(group).items() if group else ():
        own = defaults(node, group).get(path, entry.default).strip("`")
        if own != entry.default.strip("`"):
            text += f"; {own} with {group}={name}"
    return text


def _absent(path: str, group: str, composed: Composed) -> str:
    if group and path not in defaults(options(group)[composed.chosen[group]], group):
        owners = [option for option in options_with(path) if option != f"{group}={composed.chosen[group]}"]
        if owners:
            return f"not a setting of the chosen {group}={composed.chosen[group]}; it belongs to {', '.join(owners)}"
    return "no entry of that name"


def _consequences(path: str, composed: Composed) -> Iterator[tuple[str, str]]:
    """What this command makes of the setting: refused with which sentence, or without effect for which reason."""
    try:
        config = check(composed.config)
    except ConfigError as error:
        for problem in error.problems:
            if path in problem:
                yield "refused", problem
        return
    for idle, reason in idle_reasons(config):
        if idle == path:
            yield "no effect", reason


def _explain_group(path: str, composed: Composed) -> list[str]:
    group = path.split(".")[0]
    lines: list[str] = []
    if path == group:
        module = inspect.getmodule(cast(type, field_types(RootConfig)[group]))
        about = (inspect.getdoc(module) or "").splitlines()[0]
        lines += [*_paragraph(about, ""), "", f"options; * is chosen, by {composed.who_chose(group)}"]
        width = max(map(len, options(group)))
        for name, node in options(group).items():
            mark = "*" if composed.chosen[group] == name else " "
            lines += _paragraph(f"{mark} {name:<{width}}  {_first_line(node)}", "  ", " " * (width + 6))
        lines.append("")
    else:
        lines += [f"{path}: settings of {group}={composed.chosen[group]}", ""]
    own = entries(options(group)[composed.chosen[group]], f"{group}.", group)
    inside = [entry for entry in own if entry.path.startswith(f"{path}.")]
    lines += ["settings, with their values here"] if path == group else []
    width = max(len(entry.path) for entry in inside)
    for entry in inside:
        lines.append(f"  {entry.path:<{width}}  {_shown(composed.value(entry.path))}")
    return lines


def _explain_option(name: str, composed: Composed) -> list[str]:
    group, _, option = name.partition("=")
    if option not in options(group):
        raise _unknown(name, None, [f"{group}={each}" for each in options(group)])
    node = options(group)[option]
    shared = defaults(cast(type, field_types(RootConfig)[group]), group)
    own = entries(node, f"{group}.", group)
    changed = [entry for entry in own if shared.get(entry.path) != entry.default]
    is_chosen = composed.chosen[group] == option
    chosen = f"yes, by {composed.who_chose(group)}" if is_chosen else f"no, here it is {group}={composed.chosen[group]}"
    lines = [name, *_paragraph(" ".join((inspect.getdoc(node) or "").split())), "", *_rows([("chosen", chosen)]), ""]
    if not changed:
        return [*lines, f"has the settings and defaults of its group: python -m maxent_grpo explain {group}"]
    lines.append(f"what it changes of, or adds to, the settings of every {group} option")
    width = max(len(entry.path) for entry in changed)
    for entry in changed:
        before = f"{shared[entry.path].strip('`')} -> " if entry.path in shared else ""
        lines.append(f"  {entry.path:<{width}}  {before}{entry.default.strip('`')}")
    return lines


def _explain_presets(name: str, config_dir: str | None) -> list[str]:
    files = sorted((config_directory() / PRESETS).glob("*.yaml"))
    if name == f"{PRESETS}=":
        lines = ["presets, files of settings chosen with experiment=NAME"]
        return [*lines, *(f"  {file.stem}" for file in files)]
    presets = chosen_presets([name], config_dir)
    if not presets:
        raise _unknown(name, None, [f"{PRESETS}={file.stem}" for file in files])
    lines: list[str] = []
    for preset in presets:
        if not preset.is_part:
            lines += [f"{name} ({preset.label})", *_header(preset), ""]
    lines.append("what it sets")
    for preset in presets:
        if preset.is_part:
            lines += ["", f"with {preset.label}", *_header(preset)]
        lines += [f"  {choice}" for choice in preset.choices]
        lines += [f"  {path}={_shown(value)}" for path, value in preset.entries.items()]
    return lines


def _header(preset: Preset) -> list[str]:
    text = (config_directory().parent / preset.label).read_text(encoding="utf-8")
    head = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return [f"  {line.removeprefix('#').strip()}".rstrip() for line in head][1:]


def _explain_metric(name: str) -> list[str]:
    inside = [entry for entry in METRICS if entry.startswith(name)]
    if name.endswith("/") and inside:
        width = max(map(len, inside))
        lines = [_paragraph(f"{entry:<{width}}  {METRICS[entry].meaning}", "  ", " " * (width + 4)) for entry in inside]
        return [metric_group(name).about, "", *(line for part in lines for line in part)]
    try:
        entry = metric_entry(name)
    except KeyError:
        raise _unknown(name, None, METRICS) from None
    info, group = METRICS[entry], metric_group(entry)
    rows = [
        ("family", entry if entry != name else ""),
        ("unit", info.unit),
        ("measured by", f"maxent_grpo.{group.source}"),
        ("lines", group.axis),
        ("appears when", info.when or "always"),
    ]
    return [name, *_paragraph(info.meaning), "", *_rows(rows)]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return "{" + ", ".join(f"{key}: {_shown(inner)}" for key, inner in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, cast(list[Any], value))) + "]"
    return shown(value)


def _first_line(node: type) -> str:
    return (node.__doc__ or "").strip().splitlines()[0]


def _rows(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Aligned label and text, wrapped to the terminal; rows without text are left out."""
    indent = " " * (_LABEL + 2)
    return [line for label, text in rows if text for line in _paragraph(f"{label:<{_LABEL}}{text}", "  ", indent)]


def _paragraph(text: str, first: str = "  ", rest: str | None = None) -> list[str]:
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    indent = first if rest is None else rest
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )

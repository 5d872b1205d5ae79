"""The configuration of a run as nested lists that fold, what the command line said standing out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from maxent_grpo.report.environment import environment_html
from maxent_grpo.report.record import RunRecord, reproduce_command


def configuration_html(record: RunRecord) -> str:
    """The command that makes the run again, what it was made in, and every setting of config.yaml by group."""
    return _command_html(record) + environment_html(record.environment) + _tree_html(record)


def _command_html(record: RunRecord) -> str:
    if record.overrides is None:
        return '<p class="absent">overrides.json is not in the run directory, so the command line is not known.</p>'
    command = escape(reproduce_command(record.overrides, record.modules))
    return (
        '<p class="lead">This makes the same run again, in a folder of its own:</p>'
        f'<div class="command"><code>{command}</code><button type="button" class="copy" hidden>copy</button></div>'
    )


def _tree_html(record: RunRecord) -> str:
    if record.config is None:
        return '<p class="absent">config.yaml is not in the run directory, so the settings are not known.</p>'
    changed = changed_paths(record.overrides or [])
    groups = {key: value for key, value in record.config.items() if isinstance(value, Mapping)}
    single = {key: value for key, value in record.config.items() if key not in groups}
    parts = [_group_html(key, value, record.options.get(key), changed) for key, value in groups.items()]
    rows = "".join(_rows(single, "", changed))
    legend = "Settings of the command line are marked." if changed else "Nothing was said on the command line."
    return f'<p class="lead">{legend}</p><div class="config">{"".join(parts)}<dl class="single">{rows}</dl></div>'


def changed_paths(overrides: Sequence[str]) -> set[str]:
    """The dotted path, or the group, that each override sets."""
    return {text.lstrip("+~").partition("=")[0].replace("/", ".").partition("@")[0] for text in overrides}


def _is_changed(path: str, changed: set[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:length]) in changed for length in range(2, len(parts) + 1)) or (
        len(parts) == 1 and path in changed
    )


def _group_html(key: str, value: Mapping[str, Any], option: str | None, changed: set[str]) -> str:
    below = sorted({path for path in changed if path.startswith(f"{key}.")})
    marks = [f"{len(below)} changed"] if below else []
    name = f"<b>{escape(key)}</b>"
    if option is not None:
        name += f' = <span class="option{" changed" if key in changed else ""}">{escape(option)}</span>'
    mark = f'<span class="mark">{escape(marks[0])}</span>' if marks else ""
    is_open = " open" if below else ""
    rows = "".join(_rows(value, f"{key}.", changed))
    return f"<details{is_open}><summary>{name}{mark}</summary><dl>{rows}</dl></details>"


def _rows(tree: Mapping[str, Any], prefix: str, changed: set[str]) -> list[str]:
    """A row for each setting, under its dotted path."""
    rows = []
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            rows += _rows({str(name): value[name] for name in value}, f"{path}.", changed)
        else:
            mark = ' class="changed"' if _is_changed(path, changed) else ""
            rows.append(f"<dt{mark}>{escape(path)}</dt><dd{mark}>{escape(value_text(value))}</dd>")
    return rows


def value_text(value: Any) -> str:
    """A setting's value as YAML would write it on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    return "{}" if value == {} else str(value)

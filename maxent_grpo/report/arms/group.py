"""Runs grouped into arms: those that differ in their seed alone are one arm, and what tells arms apart is their name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maxent_grpo.errors import DataError
from maxent_grpo.report.configuration import changed_paths, value_text
from maxent_grpo.report.difference import ABSENT, differing, flat_settings
from maxent_grpo.report.record import RunRecord, read_record

SEED = "seed"
NOT_THE_METHOD = ("run.", "logging.", "checkpoint.")
"""Beginnings of settings that say where a run goes and how it is recorded, not what it is."""
TASK_OPTION = "data"
TASK_SETTINGS = ("data.path", "data.name", "data.tasks", "data.mixture")
"""Settings that choose other problems within one option of `data`."""
MOST_NAMED = 3
"""Most settings that are added to names that are alike, before arms are numbered."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Runs of one configuration, one for each seed."""

    name: str
    color: int
    """Place among all arms, from 0, which decides colour and pattern of its lines."""
    runs: tuple[RunRecord, ...]
    """In the order of their seeds."""
    options: Mapping[str, str]
    settings: Mapping[str, Any]
    """Settings by dotted path, without the seed and without NOT_THE_METHOD."""

    @property
    def seeds(self) -> list[int | None]:
        """The seed of each run; None where its settings do not tell."""
        return [run.identity.seed for run in self.runs]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms on one task, cut at the last step that every run has reached."""

    task: str
    arms: tuple[Arm, ...]
    """The baseline first."""
    last_step: int
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""

    @property
    def baseline(self) -> Arm:
        """What every other arm is compared with."""
        return self.arms[0]

    @property
    def runs(self) -> Iterator[tuple[Arm, RunRecord]]:
        """Every run with its arm."""
        return ((arm, run) for arm in self.arms for run in arm.runs)


def read_comparisons(runs: Sequence[Path], baseline: str | None = None) -> list[Comparison]:
    """Group run directories into arms, and arms by the task that they were run on.

    Args:
        runs: run directories with a metrics.jsonl; the order of their arms is that of their first runs.
        baseline: name of the arm that others are compared with, or a part that only one name has; by default the first arm.

    Raises:
        DataError: no run has taken a step, a file is damaged, or there is no such baseline.
    """
    records = [read_record(run) for run in {run.resolve(): run for run in runs}.values()]
    begun = [record for record in records if record.last_step > 0]
    notes = [f"{_where(record)} is left out: it has not taken a step." for record in records if record not in begun]
    if not begun:
        raise DataError("none of the runs has taken a step: there is nothing to compare yet")
    tasks: dict[str, list[RunRecord]] = {}
    for key, group in _grouped(begun, lambda record: _task_values(record)).items():
        tasks[key] = group
    names = _task_names([group[0] for group in tasks.values()])
    colors: dict[str, int] = {}
    found = []
    for task, group in zip(names, tasks.values(), strict=True):
        arms, left_out = _arms(group, colors)
        found.append((task, arms, left_out))
    chosen = _baseline_name([arm for _, arms, _ in found for arm in arms], baseline)
    comparisons = []
    for task, arms, left_out in found:
        ordered = sorted(arms, key=lambda arm: arm.name != chosen)
        cut = min(run.last_step for arm in arms for run in arm.runs)
        comparisons.append(Comparison(task, tuple(ordered), cut, left_out))
    comparisons[0].notes[:0] = notes
    return comparisons


def _grouped(records: Sequence[RunRecord], key: Any) -> dict[str, list[RunRecord]]:
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(json.dumps(key(record), sort_keys=True, default=str), []).append(record)
    return groups


def _task_values(record: RunRecord) -> list[Any]:
    return [record.options.get(TASK_OPTION), *(record.setting(path) for path in TASK_SETTINGS)]


def _task_names(firsts: Sequence[RunRecord]) -> list[str]:
    """The option of `data`, and the settings that tell tasks of one option apart."""
    options = [record.options.get(TASK_OPTION) or "task" for record in firsts]
    told = [{path: record.setting(path) for path in TASK_SETTINGS} for record in firsts]
    names = []
    for option, values in zip(options, told, strict=True):
        same = [other for name, other in zip(options, told, strict=True) if name == option]
        changes = [f"{path}={value_text(values[path])}" for path in differing(same)]
        names.append(" ".join([option, *changes]))
    return names


def options_of(record: RunRecord) -> dict[str, str]:
    """The chosen option of each group that makes a run another one."""
    return {group: option for group, option in record.options.items() if f"{group}." not in NOT_THE_METHOD}


def settings_of(record: RunRecord) -> dict[str, Any]:
    """What makes a run another one, by dotted path: all settings but the seed, where it goes and how it is recorded."""
    flat = flat_settings(record.config or {})
    kept = {path: value for path, value in flat.items() if path != SEED and not path.startswith(NOT_THE_METHOD)}
    return kept if record.config is not None else {"folder": str(record.run_dir)}


def _arms(records: Sequence[RunRecord], colors: dict[str, int]) -> tuple[list[Arm], list[str]]:
    """The arms of one task in the order of their first runs, and what was left out."""
    groups = list(_grouped(records, lambda record: [options_of(record), settings_of(record)]).values())
    names = _names(groups)
    arms, notes = [], []
    for name, group in zip(names, groups, strict=True):
        runs: dict[Any, RunRecord] = {}
        for record in group:
            key = record.run_dir if record.identity.seed is None else record.identity.seed
            kept = runs.get(key)
            if kept is not None:
                longer, other = (record, kept) if record.last_step > kept.last_step else (kept, record)
                notes.append(f"{_where(other)} is left out: {_where(longer)} has the same settings and seed.")
                runs[key] = longer
            else:
                runs[key] = record
        ordered = sorted(runs.values(), key=lambda record: (record.identity.seed is None, record.identity.seed or 0))
        color = colors.setdefault(name, len(colors))
        arms.append(Arm(name, color, tuple(ordered), options_of(group[0]), settings_of(group[0])))
    return arms, notes


def _where(record: RunRecord) -> str:
    return f"{record.run_dir.parent.name}/{record.run_dir.name}"


def _names(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """What tells the arms apart: chosen options and what a command line set; of arms still alike any setting; then a number."""
    firsts = [group[0] for group in groups]
    if len(firsts) == 1:
        return [firsts[0].identity.label]
    options = differing([options_of(record) for record in firsts])
    settings = differing([settings_of(record) for record in firsts])
    groups_chosen = {group for record in firsts for group in record.options}
    said = {
        path for group in groups for record in group for path in changed_paths(record.overrides or [])
    } - groups_chosen
    named = [path for path in settings if any(path == each or path.startswith(f"{each}.") for each in said)]
    words = [
        _words(place, options) + _words(place, {path: settings[path] for path in named}) for place in range(len(firsts))
    ]
    for same in {*map(tuple, words)}:
        alike = [place for place, each in enumerate(words) if tuple(each) == same]
        if len(alike) > 1:
            told = differing([settings_of(firsts[place]) for place in alike])
            for index, place in enumerate(alike):
                words[place] = words[place] + _words(index, dict(list(told.items())[:MOST_NAMED]))
    names = [" ".join(each) or record.identity.label for each, record in zip(words, firsts, strict=True)]
    return [
        name if names.count(name) == 1 else f"{name} ({names[:place].count(name) + 1})"
        for place, name in enumerate(names)
    ]


def _words(place: int, values: Mapping[str, Sequence[Any]]) -> list[str]:
    """``name=value`` for each key, by the last part of its path; a key that this arm lacks is not named."""
    found = {path: each[place] for path, each in values.items() if each[place] is not ABSENT}
    return [f"{path.rpartition('.')[2]}={value_text(value)}" for path, value in found.items()]


def _baseline_name(arms: Sequence[Arm], asked: str | None) -> str:
    names = list(dict.fromkeys(arm.name for arm in arms))
    if asked is None:
        return names[0]
    found = [name for name in names if name == asked] or [name for name in names if asked in name]
    if len(found) != 1:
        problem = f"fits {len(found)} arms" if found else "is no arm"
        raise DataError(f"--baseline {asked} {problem}; there are: {', '.join(names)}")
    return found[0]

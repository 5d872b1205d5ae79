"""Two run directories side by side: what they were told, what they ran on, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from maxent_grpo.report.environment import environment_facts, read_environment
from maxent_grpo.report.read import read_config, read_metrics, read_options, read_versions

OF_ONE_RUN = ("run.dir",)
"""Settings that differ between any two runs and say nothing."""

HEADLINE = (
    "eval/pass@",
    "eval/coverage@",
    "eval/maj@",
    "eval/greedy",
    "reward/mean",
    "reward/std",
    "policy/entropy",
    "policy/kl_to_reference",
    "completion/mean_length",
    "completion/clipped_ratio",
    "completion/distinct_modes",
    "weights/effective_size",
    "controller/",
    "loss/total",
    "optim/gradient_norm",
)
"""Beginnings of the names that are compared unless all are asked for."""


EVALUATION = "eval/"


@dataclass(frozen=True, slots=True)
class Change:
    """One key with its values in the two runs; None where a run has no such key."""

    key: str
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """The newest value of a metric in each run with the step that it was measured at; None where a run lacks it."""

    name: str
    left: tuple[int, float] | None
    right: tuple[int, float] | None

    @property
    def difference(self) -> float | None:
        """Right minus left, where both are known."""
        return None if self.left is None or self.right is None else self.right[1] - self.left[1]


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two records part: the last step up to which all common lines are equal, and the first that is not."""

    identical_to: int | None
    """None when already the first common line differs."""
    first: int | None
    """None when no common line differs."""
    names: tuple[str, ...]
    """The metrics that differ there."""


def changed_settings(left: Path, right: Path) -> list[Change]:
    """The settings that differ, the chosen options first.

    Raises:
        DataError: a folder holds no config.yaml.
    """
    options = [
        Change(f"{change.key}=", change.left, change.right) for change in _changes(*map(read_options, (left, right)))
    ]
    settings = _changes(*(flat_settings(read_config(run)) for run in (left, right)))
    return [*options, *(change for change in settings if change.key not in OF_ONE_RUN)]


def changed_versions(left: Path, right: Path) -> list[Change] | None:
    """The versions that differ, and then what else the runs were made in; None if a run does not record any versions."""
    versions = [read_versions(run) for run in (left, right)]
    if None in versions:
        return None
    surroundings = [read_environment(run) for run in (left, right)]
    facts = [{} if each is None or None in surroundings else environment_facts(each) for each in surroundings]
    return [*_changes(*(cast(dict[str, str], each) for each in versions)), *_changes(*facts)]


def outcomes(left: Path, right: Path, *, ignored: tuple[str, ...], every: bool = False) -> list[Outcome]:
    """The newest value of the headline metrics, or of ``every`` metric, leaving out names that begin with ``ignored``."""
    latest = [_latest(read_metrics(run)) for run in (left, right)]
    names = [name for name in sorted({*latest[0], *latest[1]}) if not name.startswith(ignored)]
    if not every:
        rank = {name: place for place, start in enumerate(HEADLINE) for name in names if name.startswith(start)}
        names = sorted(rank, key=lambda name: (rank[name], name))
    return [Outcome(name, latest[0].get(name), latest[1].get(name)) for name in names]


def parting(
    left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]], *, ignored: tuple[str, ...]
) -> Parting:
    """Where two runs' metrics part; lines are compared bit for bit, leaving out names that begin with ``ignored``."""
    theirs = {row["step"]: row for row in right}
    last: int | None = None
    for row in left:
        step = row["step"]
        if step not in theirs:
            continue
        names = sorted({*row, *theirs[step]} - {"step"})
        # runs of another length or with another schedule evaluate at other steps, which is no difference
        lonely = {
            name for name in names if name.startswith(EVALUATION) and (name not in row or name not in theirs[step])
        }
        names = [name for name in names if not name.startswith(ignored) and name not in lonely]
        differing = [name for name in names if row.get(name) != theirs[step].get(name)]
        if differing:
            return Parting(last, step, tuple(differing))
        last = step
    return Parting(last, None, ())


def _latest(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float]]:
    return {name: (row["step"], value) for row in rows for name, value in row.items() if name != "step"}


def flat_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting under its dotted path."""
    return dict(_flat(config))


def differing(sides: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The keys that do not have one value on all sides, each with its values in their order; ABSENT where a side lacks it."""
    absent = object()
    keys = dict.fromkeys(key for side in sides for key in side)
    found = {key: [side.get(key, absent) for side in sides] for key in keys}
    return {
        key: [ABSENT if value is absent else value for value in values]
        for key, values in found.items()
        if any(value != values[0] for value in values)
    }


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _flat(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _changes(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Change]:
    return [Change(key, *values) for key, values in differing((left, right)).items()]


ABSENT = "(not there)"
"""Stands for the value of a key that one of the runs lacks."""

"""Every run below a folder, each in a line: quick, and unmoved by what is half written, missing or none of ours."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxent_grpo.errors import DataError
from maxent_grpo.report.read import (
    CONFIG_FILE,
    METRICS_FILE,
    PAGE_FILE,
    RunIdentity,
    headline_measures,
    in_number_order,
    metric_series,
    read_options,
    sweep_of,
)
from maxent_grpo.report.record import RunRecord, read_log, status

REWARD = "reward/mean"
MOST_LINES = 120
"""Most lines of metrics.jsonl that are decoded besides those of evaluations: enough for a sparkline and the end."""
COMPLETE = "eval/pass@"
TOP_LEVEL = ("seed:", "  total_training_steps:")


@dataclass(frozen=True, slots=True)
class IndexedRun:
    """One run as the table shows it."""

    folder: Path
    """Below the root."""
    sweep: str
    """Folder of its sweep below the root; empty for a run of its own."""
    method: str
    task: str
    model: str
    seed: int | None
    is_finished: bool
    state: str
    """A sentence about its end."""
    last_step: int
    figures: Mapping[str, float]
    """The newest headline measures and reward."""
    course: Sequence[float]
    """What the sparkline draws."""
    changed: float
    """When its metrics were last written [seconds since the epoch]."""
    has_page: bool


def scan(root: Path) -> list[IndexedRun]:
    """The runs below ``root``, newest first; folders whose names begin with a dot, and what lies in runs, are not entered."""
    runs = [_read(root, folder) for folder in _run_folders(root)]
    return sorted(runs, key=lambda run: (-run.changed, in_number_order(str(run.folder))))


def _run_folders(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        if METRICS_FILE in files or (
            CONFIG_FILE in files and Path(folder, CONFIG_FILE).stat().st_size and _is_ours(Path(folder))
        ):
            below.clear()
            yield Path(folder)
            continue
        below[:] = sorted(name for name in below if not name.startswith("."))


def _is_ours(folder: Path) -> bool:
    """Whether a config.yaml without metrics is that of a run that has not begun; other programs have such files too."""
    return "scoring" in _options(folder)


def _options(folder: Path) -> dict[str, str]:
    try:
        return read_options(folder)
    except (DataError, UnicodeDecodeError, OSError):
        return {}  # a foreign or half-written file names no options


def _read(root: Path, folder: Path) -> IndexedRun:
    options = _options(folder)
    seed, total = _seed_and_total(folder)
    rows, num_damaged = _rows(folder / METRICS_FILE)
    log = read_log(folder / "run.log")
    identity = RunIdentity(options.get("scoring"), seed, folder.name)
    config = None if total is None else {"optimization": {"total_training_steps": total}}
    record = RunRecord(folder, identity, rows, options, config, None, log)
    is_finished, state = status(record)
    if num_damaged:
        state += f"; {num_damaged} damaged line{'' if num_damaged == 1 else 's'} of {METRICS_FILE} not read"
    names = headline_measures(rows)
    series = {name: metric_series(rows, f"eval/{name}")[1] for name in names}
    rewards = metric_series(rows, REWARD)[1]
    figures = {name: values[-1] for name, values in series.items() if values}
    if rewards:
        figures["reward"] = sum(rewards[-5:]) / len(rewards[-5:])
    course = next((values for values in series.values() if len(values) > 2), rewards)
    sweep = sweep_of(folder)
    return IndexedRun(
        folder=folder.relative_to(root),
        sweep=str(sweep.relative_to(root)) if sweep is not None and root in sweep.parents else "",
        method=identity.method or "",
        task=options.get("data", ""),
        model=options.get("model", ""),
        seed=seed,
        is_finished=is_finished,
        state=state,
        last_step=record.last_step,
        figures=figures,
        course=course,
        changed=_changed(folder),
        has_page=(folder / PAGE_FILE).is_file(),
    )


def _changed(folder: Path) -> float:
    path = folder / METRICS_FILE
    return (path if path.is_file() else folder).stat().st_mtime


def _seed_and_total(folder: Path) -> tuple[int | None, int | None]:
    """Seed and planned steps from config.yaml by their lines: parsing hundreds of whole files would take a minute."""
    path = folder / CONFIG_FILE
    found: list[int | None] = [None, None]
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            for place, start in enumerate(TOP_LEVEL):
                if line.startswith(start):
                    text = line.removeprefix(start).strip()
                    found[place] = int(text) if text.isdecimal() else None
    seed, total = found
    return seed, total or None


def _rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Lines of evaluations, and evenly chosen others with the last ones, by step; and how many could not be read."""
    if not path.is_file():
        return [], 0
    lines = path.read_bytes().split(b"\n")
    whole = lines[:-1]  # what follows the last newline was being written
    every = max(1, len(whole) // MOST_LINES)
    marker = f'"{COMPLETE}'.encode()
    chosen = [
        line for place, line in enumerate(whole) if place % every == 0 or place >= len(whole) - 5 or marker in line
    ]  # fmt: skip
    rows, num_damaged = [], 0
    for line in chosen:
        row = _row(line)
        if row is None:
            num_damaged += 1
        else:
            rows.append(row)
    return sorted(rows, key=lambda row: row["step"]), num_damaged


def _row(line: bytes) -> dict[str, Any] | None:
    """The numbers of a line; None where it does not hold a step's record."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("step"), int):
        return None
    return {name: each for name, each in value.items() if isinstance(each, (int, float)) and abs(each) < 1e300}

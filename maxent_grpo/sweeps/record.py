"""What a sweep keeps on disk: its jobs in ``sweep.json``, and in each job's folder how the job stands in ``job.json``.

Both files are replaced atomically. A job is finished when its ``job.json`` says so, which is written after everything else: the
last line of metrics comes before the last checkpoint and the trained model, and proves neither.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from maxent_grpo.config.secrets import redacted, redacted_tree
from maxent_grpo.errors import DataError
from maxent_grpo.folder_lock import is_held
from maxent_grpo.report.atomic import write_atomically
from maxent_grpo.report.read import DEEPEST, METRICS_FILE, SWEEP_FILE, metric_series, read_metrics

JOB_FILE = "job.json"
JOB_LOCK = ".job.lock"
SET_ASIDE = ".set_aside"
"""Folder of a sweep that keeps the files of jobs which had to start again; hidden, so that SWEEP/*/ are its runs."""


class Standing(StrEnum):
    """How a job stands."""

    waiting = "waiting"
    running = "running"
    finished = "finished"
    failed = "failed"
    interrupted = "interrupted"
    refused = "refused"


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job of a grid."""

    name: str
    """Its folder, inside the sweep's."""
    overrides: list[str]
    changed: dict[str, str]
    """The swept keys with this job's values."""
    problems: list[str] = field(default_factory=list[str])
    """Why it cannot run; empty for a good one."""


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """What a sweep is, written before its first job."""

    jobs: list[PlannedJob]
    keys: list[str]
    """The swept keys."""
    started: str
    process: int
    host: str
    num_threads: int | None = None
    """CPU threads given to each job, so that jobs at the same time do not share cores; None leaves it to the job."""
    objective: str | None = None
    objective_goal: str = "max"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """How a job stands, and what it has measured."""

    name: str
    changed: dict[str, str]
    standing: Standing
    overrides: list[str] = field(default_factory=list[str])
    steps: int = 0
    seconds: float = 0.0
    """Wall-clock time of its optimiser steps, over every part of a continued job."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """The newest value of each metric."""
    problems: list[str] = field(default_factory=list[str])
    exit_status: int = 0
    """What its process would have ended with; 0 where it was killed or goes on."""


def new_record(
    jobs: list[PlannedJob], keys: Sequence[str], num_threads: int | None, objective: str | None, goal: str
) -> SweepRecord:
    """The record of a sweep that this process starts or continues now."""
    now = datetime.now().isoformat(timespec="seconds")
    return SweepRecord(jobs, list(keys), now, os.getpid(), socket.gethostname(), num_threads, objective, goal)


def write_sweep(folder: Path, record: SweepRecord) -> None:
    """Replace the sweep's record."""
    _write(folder / SWEEP_FILE, asdict(record))


def read_sweep(folder: Path) -> SweepRecord | None:
    """The sweep's record; None where the folder holds none.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / SWEEP_FILE
    if not path.is_file():
        return None
    content = _read(path)
    try:
        jobs = [PlannedJob(**_known(PlannedJob, job)) for job in content["jobs"]]
        return SweepRecord(**{**_known(SweepRecord, content), "jobs": jobs})
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} is not the record of a sweep ({error}): it was changed by hand or damaged") from error


def write_job(folder: Path, record: JobRecord) -> None:
    """Replace the record of the job in ``folder``."""
    _write(folder / JOB_FILE, asdict(record))


def read_job(folder: Path) -> JobRecord | None:
    """How the job in ``folder`` stands now; None before its first start.

    A job that says it is running, but that nobody runs, was interrupted. Of one that has not ended the figures are those of
    its metrics.jsonl.

    Raises:
        DataError: a file is damaged.
    """
    path = folder / JOB_FILE
    if not path.is_file():
        return None
    content = _read(path)
    try:
        record = JobRecord(**{**_known(JobRecord, content), "standing": Standing(content["standing"])})
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not the record of a job ({error}): it was changed by hand or damaged") from error
    if record.standing is Standing.running:
        standing = Standing.running if is_held(folder / JOB_LOCK) else Standing.interrupted
        record = with_figures(replace(record, standing=standing), folder)
    return record


def with_figures(record: JobRecord, folder: Path) -> JobRecord:
    """The record with what the run in ``folder`` has recorded so far."""
    if not (folder / METRICS_FILE).is_file():
        return record
    rows = read_metrics(folder)
    return replace(
        record,
        steps=max((row["step"] for row in rows), default=0),
        seconds=sum(metric_series(rows, "time/step_seconds")[1]),
        metrics=newest(rows),
    )


def newest(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The newest value of every metric."""
    return {name: value for row in rows for name, value in row.items() if name != "step"}


def read_jobs(folder: Path) -> list[JobRecord]:
    """Every job of a sweep: those of its record, in their order, then those that a search has added.

    Raises:
        DataError: a file is damaged.
    """
    sweep = read_sweep(folder)
    planned = [] if sweep is None else sweep.jobs
    found = [_of_planned(folder, job) for job in planned]
    known = {job.name for job in planned}
    paths = [path for depth in range(1, DEEPEST + 1) for path in folder.glob("*/" * depth + JOB_FILE)]
    added = [path.parent for path in paths if SET_ASIDE not in path.relative_to(folder).parts]
    others = [record for each in added if (record := read_job(each)) and record.name not in known]
    return found + sorted(others, key=_order)


def number_of(name: str) -> str:
    """The number that a job's folder begins with; the whole name where it begins with none."""
    number = name.partition("-")[0]
    return number if number.isdigit() else name


def titled(name: str, num_jobs: int) -> str:
    """A job as progress speaks of it: which one of how many."""
    number = number_of(name)
    return f"job {int(number) + 1} of {num_jobs}, {name}" if number.isdigit() else f"job {name}"


def _of_planned(folder: Path, job: PlannedJob) -> JobRecord:
    if job.problems:
        return JobRecord(job.name, job.changed, Standing.refused, job.overrides, problems=job.problems)
    return read_job(folder / job.name) or JobRecord(job.name, job.changed, Standing.waiting, job.overrides)


def _known(kind: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """What a record holds of what this version reads: a sweep may be continued by another than began it."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in content.items() if name in names}


def _order(record: JobRecord) -> tuple[int, str]:
    number = number_of(record.name)
    return int(number) if number.isdigit() else 0, record.name


def same_overrides(ours: Sequence[str], kept: Sequence[str]) -> bool:
    """Whether overrides are those of a record, which keeps no secrets."""
    return list(map(redacted, ours)) == list(map(redacted, kept))


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(redacted_tree(content), indent=1, sort_keys=True) + "\n"
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}): it was changed by hand or damaged") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds {type(content).__name__}, not a record")
    return content

"""The table of a sweep: ``sweep.csv`` with a row for each job, and what a terminal shows of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from maxent_grpo.folder_lock import held
from maxent_grpo.report.atomic import write_atomically
from maxent_grpo.report.read import SWEEP_TABLE, headline_measures
from maxent_grpo.report.scale import duration
from maxent_grpo.sweeps.record import JobRecord, Standing, SweepRecord, number_of, read_jobs, read_sweep

TABLE_LOCK = ".table.lock"
TABLE_PATIENCE = 60.0
"""How long a process waits for another one that writes the table [seconds]."""
SEED = "seed"
OTHER_HEADLINES = ("eval/greedy", "reward/mean")


@dataclass(frozen=True, slots=True)
class Arm:
    """The jobs that differ in their seed alone."""

    changed: dict[str, str]
    jobs: list[JobRecord]
    """Those that are finished."""


def write_table(folder: Path) -> Path:
    """Write the sweep's table anew from the records of its jobs.

    Raises:
        DataError: a record is damaged.
    """
    path = folder / SWEEP_TABLE
    refusal = f"{path}: another process has been writing the table for {TABLE_PATIENCE:.0f} s"
    # of two jobs that end at once the later one must see the earlier one's record
    with held(folder / TABLE_LOCK, refusal, TABLE_PATIENCE):
        text = table_text(folder, read_jobs(folder))
        write_atomically(path, lambda file: file.write(text.encode("utf-8")))
    return path


def table_text(folder: Path, jobs: Sequence[JobRecord]) -> str:
    """The rows as CSV: job, swept keys, status, steps, seconds, evaluation figures, other metrics, directory, problem."""
    keys = swept_keys(jobs)
    names = sorted({name for job in jobs for name in job.metrics})
    names.sort(key=lambda name: not name.startswith("eval/"))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["job", *keys, "status", "steps", "seconds", *names, "directory", "problem"])
    for job in jobs:
        writer.writerow(
            [
                job.name,
                *(job.changed.get(key, "") for key in keys),
                *(job.standing, job.steps, f"{job.seconds:.3f}"),
                *(job.metrics.get(name, "") for name in names),
                *(folder / job.name, job.problems[0] if job.problems else ""),
            ]
        )
    return stream.getvalue()


def swept_keys(jobs: Iterable[JobRecord]) -> list[str]:
    """The keys that the jobs change, in the order in which they were swept."""
    return list(dict.fromkeys(key for job in jobs for key in job.changed))


def shown_metrics(jobs: Sequence[JobRecord], objective: str | None) -> list[str]:
    """The metrics that a terminal has room for: the objective, pass@ and coverage@ at the ends of k, greedy, reward."""
    measured = {name for job in jobs for name in job.metrics}
    headline = [f"eval/{measure}" for measure in headline_measures([job.metrics for job in jobs])]
    first = [] if objective is None else [objective]
    return list(dict.fromkeys(name for name in [*first, *headline, *OTHER_HEADLINES] if name in measured))


def in_order(jobs: Sequence[JobRecord], sweep: SweepRecord | None) -> list[JobRecord]:
    """The jobs as they were planned; with an objective the best first, and last those that have no value."""
    if sweep is None or sweep.objective is None:
        return list(jobs)
    name, sign = sweep.objective, -1.0 if sweep.objective_goal == "max" else 1.0

    def rank(job: JobRecord) -> tuple[bool, float]:
        is_known = job.standing is Standing.finished and name in job.metrics
        return not is_known, sign * job.metrics[name] if is_known else 0.0

    return sorted(jobs, key=rank)


def arms(jobs: Sequence[JobRecord]) -> list[Arm]:
    """The jobs grouped by everything but their seed; none where the seed was not swept."""
    if SEED not in swept_keys(jobs):
        return []
    found: dict[tuple[tuple[str, str], ...], Arm] = {}
    for job in jobs:
        changed = {key: value for key, value in job.changed.items() if key != SEED}
        arm = found.setdefault(tuple(sorted(changed.items())), Arm(changed, []))
        if job.standing is Standing.finished:
            arm.jobs.append(job)
    return list(found.values())


def job_rows(jobs: Sequence[JobRecord], metrics: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of jobs."""
    keys = swept_keys(jobs)
    heads = ["job", *keys, "status", "steps", "time", *map(_short, metrics)]
    rows = [
        [
            number_of(job.name),
            *(job.changed.get(key, "") for key in keys),
            *(str(job.standing), str(job.steps), duration(job.seconds)),
            *(_figure(job.metrics, name) for name in metrics),
        ]
        for job in jobs
    ]
    return heads, rows


def arm_rows(found: Sequence[Arm], metrics: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of arms: mean over the finished seeds, and their sample standard deviation."""
    keys = list(dict.fromkeys(key for arm in found for key in arm.changed))
    heads = [*(keys or ["arm"]), "seeds", *map(_short, metrics)]
    rows = [
        [
            *([arm.changed.get(key, "") for key in keys] or ["all"]),
            str(len(arm.jobs)),
            *(_spread([job.metrics[name] for job in arm.jobs if name in job.metrics]) for name in metrics),
        ]
        for arm in found
    ]
    return heads, rows


def sweep_tables(folder: Path) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, heads and rows of the tables that a terminal shows of a sweep: its jobs, and its arms if seeds were swept.

    Raises:
        DataError: a record is damaged.
    """
    sweep = read_sweep(folder)
    objective = None if sweep is None else sweep.objective
    jobs = in_order(read_jobs(folder), sweep)
    if not jobs:
        return []
    metrics = shown_metrics(jobs, objective)
    num_finished = sum(job.standing is Standing.finished for job in jobs)
    tables = [(f"{folder}: {num_finished} of {len(jobs)} jobs finished", *job_rows(jobs, metrics))]
    found = arms(jobs)
    if metrics and any(len(arm.jobs) > 1 for arm in found):
        tables.append(("mean ± standard deviation over seeds", *arm_rows(found, metrics)))
    return tables


def _short(metric: str) -> str:
    return metric.removeprefix("eval/")


def _figure(metrics: Mapping[str, float], name: str) -> str:
    return f"{metrics[name]:.3f}" if name in metrics else "-"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")

"""Continuing a sweep: which folder holds it, whether it is the same sweep, and what becomes of each job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from maxent_grpo.config.preflight import CHECKPOINTS, run_marks
from maxent_grpo.config.secrets import redacted
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.report.read import SWEEP_FILE
from maxent_grpo.sweeps.job import complete_checkpoint
from maxent_grpo.sweeps.record import (
    SET_ASIDE,
    PlannedJob,
    Standing,
    SweepRecord,
    read_job,
    read_sweep,
)

RESUME = "run.sweep_resume"


class Action(StrEnum):
    """What becomes of a job when its sweep is continued."""

    skip = "skipped"
    resume = "continued"
    start = "started"
    leave = "left alone"


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a job, and why."""

    job: PlannedJob
    action: Action
    reason: str


def find_sweep(default: Path, jobs: Sequence[PlannedJob]) -> Path:
    """The newest sweep of exactly these jobs, among the folders DAY/TIME beside which ``default`` would stand.

    Raises:
        ConfigError: there is none.
    """
    root = default.parent.parent
    found: list[tuple[str, Path]] = []
    for file in root.glob(f"*/*/{SWEEP_FILE}"):
        try:
            record = read_sweep(file.parent)
        except DataError:
            continue  # a damaged record of another sweep is no reason not to continue this one
        if record is not None and not differences(record, jobs):
            found.append((record.started, file.parent))
    if not found:
        raise ConfigError(
            f"{RESUME}=true: no sweep of these jobs lies in {root}/*/*; name its folder with hydra.sweep.dir=FOLDER, or leave "
            f"{RESUME} out to start one"
        )
    return max(found)[1]


def differences(record: SweepRecord, jobs: Sequence[PlannedJob]) -> list[str]:
    """How the jobs differ from those of a sweep, in words; empty for the same jobs."""
    there = {tuple(map(redacted, job.overrides)) for job in record.jobs}
    here = {tuple(map(redacted, job.overrides)) for job in jobs}
    said = [f"only there: {' '.join(each)}" for each in sorted(there - here)]
    said += [f"only here: {' '.join(each)}" for each in sorted(here - there)]
    if not said and [job.name for job in record.jobs] != [job.name for job in jobs]:
        said.append("the jobs have other names or another order")
    return said


def require_same(record: SweepRecord, jobs: Sequence[PlannedJob], folder: Path) -> None:
    """Refuse to continue another sweep.

    Raises:
        ConfigError: the jobs are not those of the sweep.
    """
    found = differences(record, jobs)
    if found:
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise ConfigError(
            f"{RESUME}=true: {folder} holds a sweep of other jobs ({'; '.join(found[:4])}{more}): repeat the command that "
            "started it, or name another hydra.sweep.dir"
        )


def decide(folder: Path, job: PlannedJob) -> Decision:
    """What becomes of a job of the sweep in ``folder``.

    Raises:
        DataError: its record is damaged.
    """
    record = read_job(folder / job.name)
    if record is None:
        return Decision(job, Action.start, "was not started")
    if record.standing is Standing.finished:
        return Decision(job, Action.skip, "finished")
    if record.standing is Standing.running:
        return Decision(job, Action.leave, "still runs in another process")
    before = f"failed ({record.problems[0]})" if record.standing is Standing.failed else "was interrupted"
    checkpoint = complete_checkpoint(folder / job.name)
    if checkpoint is not None:
        return Decision(job, Action.resume, f"{before}; goes on from {CHECKPOINTS}/{checkpoint.name}")
    kept = bool(run_marks(folder / job.name))
    moved = f", its files are kept in {SET_ASIDE}" if kept else ""
    return Decision(job, Action.start, f"{before} without a checkpoint{moved}")


def plan_text(folder: Path, decisions: Sequence[Decision], num_refused: int) -> str:
    """What is about to happen to each job, as aligned plain text."""
    return "\n".join(_plan_lines(folder, decisions, num_refused))


def _plan_lines(folder: Path, decisions: Sequence[Decision], num_refused: int) -> Iterator[str]:
    counts = [f"{sum(each.action is action for each in decisions)} {action}" for action in Action]
    if num_refused:
        counts.append(f"{num_refused} refused")
    kept = [text for text in counts if not text.startswith("0 ")]
    yield f"sweep {folder}: {len(decisions) + num_refused} jobs, of which {', '.join(kept)}"
    width = max((len(each.action) for each in decisions), default=0)
    for each in decisions:
        yield f"  {each.action:<{width}}  {each.job.name}: {each.reason}"

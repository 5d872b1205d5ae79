"""The function that launchers call for each job: it runs in this process, in a worker or on another machine.

It keeps the job's record and the sweep's table up to date, lets nobody else run the job at the same time, and continues what an
earlier part of the same job has left. It holds nothing but plain values, so that it can be sent to another process.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import TaskFunction
from omegaconf import DictConfig

from maxent_grpo.config.checkpoint import LATEST
from maxent_grpo.config.declared import options
from maxent_grpo.config.extend import add_option
from maxent_grpo.config.logging import Console
from maxent_grpo.config.own_modules import added_by
from maxent_grpo.config.preflight import CHECKPOINTS, run_marks
from maxent_grpo.config.secrets import redacted
from maxent_grpo.config.store import OPTIONS
from maxent_grpo.errors import CheckpointError, ConfigError, MaxentGrpoError, exit_status
from maxent_grpo.folder_lock import held
from maxent_grpo.report.read import METRICS_FILE
from maxent_grpo.report.record import read_record, status
from maxent_grpo.sweeps.record import (
    JOB_LOCK,
    SET_ASIDE,
    JobRecord,
    Standing,
    read_job,
    same_overrides,
    titled,
    with_figures,
    write_job,
)
from maxent_grpo.sweeps.table import write_table
from maxent_grpo.training.checkpoint.store import find_checkpoint

ERROR_FILE = "error.txt"
"""Traceback of an unexpected error, in the job's folder."""


class JobError(MaxentGrpoError):
    """What stopped a job, as one line that any process can read."""


@dataclass(frozen=True)
class SweepJob:
    """``run`` as one job of a sweep."""

    run: TaskFunction
    """What a single run would call."""
    sweep_dir: str
    keys: tuple[str, ...]
    """The swept keys."""
    num_jobs: int
    objective: str | None = None
    """Metric whose newest value the job returns; None returns what ``run`` does."""
    is_search: bool = False
    """Whether the jobs are those of a search, for which a failed job has no value."""
    silences: bool = False
    """Whether jobs run at the same time, whose consoles would talk over each other."""
    ends_sweep: bool = True
    """Whether a job that is told to stop ends the sweep, as where the jobs run in its own process one after the other."""
    num_threads: int | None = None
    """CPU threads of a job that names none itself; None leaves it to torch."""
    options: tuple[tuple[str, str, type], ...] = field(default_factory=lambda: tuple(OPTIONS))
    """The options that the process which made this knows, its user's own among them."""
    modules: Mapping[tuple[str, str], str] = field(default_factory=added_by)
    """Group and option to the module that added it there."""

    def __call__(self, config: DictConfig) -> Any:
        """Run the job and record how it ended.

        Raises:
            MaxentGrpoError: the job's own error; of one that this package does not raise, a line that names it.
        """
        for group, option, node in self.options:
            if option not in options(group):
                add_option(group, option, node, module=self.modules.get((group, option)))
        runtime = HydraConfig.get()
        folder = Path(runtime.runtime.output_dir)
        overrides = list(runtime.overrides.task)
        name = str(folder.relative_to(self.sweep_dir))
        record = JobRecord(name, changed_values(overrides, self.keys), Standing.running, overrides)
        refusal = f"{folder}: another process runs this job now; wait for it, or end it"
        try:
            with held(folder / JOB_LOCK, refusal):
                before = read_job(folder)
                if (
                    self.is_search
                    and before
                    and before.standing is Standing.finished
                    and same_overrides(before.overrides, overrides)
                ):
                    print(f"{titled(name, self.num_jobs)}: finished before", flush=True)
                    return self._objective(before)
                checkpoint, how = earlier_part(folder, Path(self.sweep_dir), record)
                # what the user goes on from is where the job begins, and `latest` means the same as the earlier part
                if checkpoint is not None and config.checkpoint.resume_from != LATEST:
                    config.checkpoint.resume_from = checkpoint
                return self._run(config, folder, record, how)
        except Exception:
            if self.is_search:
                return None  # the sweeper takes what is no number for a failed trial, and goes on
            raise
        finally:
            write_table(Path(self.sweep_dir))

    def _run(self, config: DictConfig, folder: Path, record: JobRecord, how: str) -> Any:
        said = titled(record.name, self.num_jobs)
        try:
            write_job(folder, record)
            write_table(Path(self.sweep_dir))
            if self.silences:
                config.logging.console = Console.silent
            if config.run.num_threads is None:
                config.run.num_threads = self.num_threads
            print(f"{said}: {how}", flush=True)
            value = self.run(config)
            record = _ended(with_figures(record, folder), folder)
            value = value if self.objective is None else self._objective(record)
        except Exception as error:
            # the job is the user's run and may raise anything; its failure must not hide those of the others
            record = replace(
                with_figures(record, folder),
                standing=Standing.failed,
                problems=problems_of(error),
                exit_status=exit_status(error),
            )
            if not isinstance(error, MaxentGrpoError):
                (folder / ERROR_FILE).write_text(redacted(traceback.format_exc()), encoding="utf-8")
                record.problems[0] += f" (traceback: {folder / ERROR_FILE})"
            write_job(folder, record)
            print(f"{said}: failed: {redacted(record.problems[0])}", flush=True)
            if isinstance(error, MaxentGrpoError):
                raise
            raise JobError(record.problems[0]) from None
        except BaseException as error:
            record = replace(with_figures(record, folder), standing=Standing.interrupted)
            if isinstance(error, SystemExit) and isinstance(error.code, int):
                stopped = ["its run was stopped before its last step"]
                record = replace(record, problems=stopped, exit_status=error.code)
            write_job(folder, record)
            print(f"{said}: interrupted", flush=True)
            if isinstance(error, SystemExit) and not self.ends_sweep:
                return None  # raised in a launcher's process it would take those down that run beside it
            raise
        write_job(folder, record)
        print(f"{said}: {record.standing}", flush=True)
        return value

    def _objective(self, record: JobRecord) -> float:
        assert self.objective is not None
        if self.objective not in record.metrics:
            measured = ", ".join(sorted(name for name in record.metrics if name.startswith("eval/"))) or "none"
            raise ConfigError(
                f"run.objective={self.objective}: the job ended without that metric; evaluation figures that it has: {measured}"
            )
        return record.metrics[self.objective]


def earlier_part(folder: Path, sweep_dir: Path, record: JobRecord) -> tuple[str | None, str]:
    """The checkpoint folder that a job goes on from, None to start afresh, and what happens, in words.

    Files of an earlier part that saved no complete checkpoint are moved into the sweep's folder for such files.

    Raises:
        ConfigError: the folder holds a run that is not an earlier part of this job.
    """
    if not run_marks(folder):
        return None, "starts"
    before = read_job(folder)
    if before is None or not same_overrides(before.overrides, record.overrides):
        raise ConfigError(f"{folder} already holds another run: name another hydra.sweep.dir, or move that folder away")
    checkpoint = complete_checkpoint(folder)
    if checkpoint is not None:
        return str(checkpoint), f"continues from {CHECKPOINTS}/{checkpoint.name}"
    moved = set_aside(folder, sweep_dir, record.name)
    return None, f"starts afresh, as its earlier part saved no checkpoint; that lies in {moved}"


def complete_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run, None if it has none."""
    try:
        return find_checkpoint(folder)
    except CheckpointError:
        return None


def set_aside(folder: Path, sweep_dir: Path, name: str) -> Path:
    """Move everything but the lock out of a job's folder, into a new folder below the sweep's ``SET_ASIDE``."""
    flat = name.replace("/", "_")
    number = 1 + sum(1 for _ in (sweep_dir / SET_ASIDE).glob(f"{_escaped(flat)}.*"))
    target = sweep_dir / SET_ASIDE / f"{flat}.{number}"
    target.mkdir(parents=True)
    for path in sorted(folder.iterdir()):
        if path.name != JOB_LOCK:
            shutil.move(path, target / path.name)
    return target


def changed_values(overrides: list[str], keys: tuple[str, ...]) -> dict[str, str]:
    """The values that the overrides give to the swept keys."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    return {each.key_or_group: each.get_value_element_as_str() for each in parsed if each.key_or_group in keys}


def problems_of(error: Exception) -> list[str]:
    """What an error says, a line each."""
    if isinstance(error, ConfigError):
        return error.problems
    first = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, JobError):
        return [str(error)]
    return [f"{type(error).__name__}: {first}" if first else type(error).__name__]


def _ended(record: JobRecord, folder: Path) -> JobRecord:
    """The record of a job that returned: finished, unless its run stopped before its last step for now."""
    if (folder / METRICS_FILE).is_file():
        is_finished, sentence = status(read_record(folder))
        if not is_finished:
            return replace(record, standing=Standing.interrupted, problems=[sentence])
    return replace(record, standing=Standing.finished)


def _escaped(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)

"""Sweeps in which a bad job fails alone: `python train.py -m scoring=grpo,maxent seed=0,1,2`.

Hydra composes a job's configuration inside the launcher, where one that cannot be composed ends the whole sweep. Here every
job passes the gates first, those that do are handed to Hydra's launcher, and all failures are reported at the end. What a job
came to is read from its record, which it writes wherever it runs; a launcher that breaks, or a job that is killed, says nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from maxent_grpo.commands.dry import describe_jobs
from maxent_grpo.commands.search import run_search
from maxent_grpo.commands.sweep_table import show_sweep
from maxent_grpo.config.compose import hydra_session
from maxent_grpo.config.installed import train_command
from maxent_grpo.config.load import compose_checked
from maxent_grpo.config.quoting import quoted, setting_word
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import WRONG_SETTINGS, ConfigError, exit_status
from maxent_grpo.report.read import MULTIRUN_FILE
from maxent_grpo.sweeps.command_line import SWEEP_DIR, SweepCommand, sort_command, text_of
from maxent_grpo.sweeps.failure import SweepError, SweepFailure
from maxent_grpo.sweeps.grid import Grid, plan_grid
from maxent_grpo.sweeps.job import SweepJob, problems_of
from maxent_grpo.sweeps.launchers import batch_size, is_basic, jobs_at_once, talks_here, threads_of_a_job
from maxent_grpo.sweeps.owner import owned
from maxent_grpo.sweeps.plan import RESUME, Action, decide, find_sweep, plan_text, require_same
from maxent_grpo.sweeps.record import (
    PlannedJob,
    Standing,
    SweepRecord,
    new_record,
    read_jobs,
    read_sweep,
    titled,
    write_sweep,
)
from maxent_grpo.sweeps.search import is_search
from maxent_grpo.sweeps.table import write_table
from maxent_grpo.sweeps.watch import watched

Numbered = list[tuple[int, PlannedJob]]
"""Jobs with their numbers in the grid."""


def run_sweep(overrides: list[str], job: TaskFunction, *, config_dir: str | None = None) -> list[JobReturn]:
    """Run ``job`` on every combination of the overrides' comma-separated values; with `run.dry` only describe each.

    With `run.sweep_resume=true` finished jobs of the same sweep are left as they are and the others go on. Another sweeper of
    Hydra's than the grid chooses the jobs itself.

    Returns:
        What Hydra's launcher returned for each job that it ran to an end, in the order of the grid.

    Raises:
        ConfigError: the sweep itself cannot be read or run: an override, the one preset of all jobs, its folder.
        SweepError: after all jobs, if any was refused, raised or did not finish.
    """
    command = sort_command(overrides, config_dir)
    compose_checked([*map(text_of, command.for_hydra), *command.presets], config_dir=config_dir)
    with hydra_session() as hydra:
        master = command.master(hydra)
        if is_search(master):
            run_search(hydra, master, command, job)
            return []
        return _run_grid(hydra, master, command, job)


def _run_grid(hydra: Hydra, master: DictConfig, command: SweepCommand, job: TaskFunction) -> list[JobReturn]:
    grid = plan_grid(hydra, master, command)
    is_dry = _all_dry(grid.configs)
    if command.is_resumed and not command.names_folder:
        found = find_sweep(Path(master.hydra.sweep.dir), grid.jobs)
        master = command.master(hydra, f"{SWEEP_DIR}={quoted(str(found))}")
    folder = Path(os.path.abspath(master.hydra.sweep.dir))
    failures = {
        each.name: SweepFailure(each.overrides, each.problems, WRONG_SETTINGS) for each in grid.jobs if each.problems
    }
    results: list[JobReturn] = []
    if is_dry:
        failures |= _describe(hydra, master, command, grid, folder)
    elif grid.good:
        with owned(folder):
            todo, sweep = _begin(master, command, grid, folder)
            try:
                results, unfinished = _launch(hydra, master, job, grid, todo, sweep, folder)
                failures |= unfinished
            finally:
                _finish(folder, command)
    if failures:
        raise SweepError(len(grid.jobs), [failures[each.name] for each in grid.jobs if each.name in failures])
    return results


def _begin(master: DictConfig, command: SweepCommand, grid: Grid, folder: Path) -> tuple[Numbered, SweepRecord]:
    """Settle what is to be run, say it, and write the sweep's record; the jobs come with their numbers."""
    before = read_sweep(folder)
    if before is not None and not command.is_resumed:
        raise ConfigError(
            f"{SWEEP_DIR}={folder}: already holds a sweep; continue it with {RESUME}=true, or name another folder"
        )
    numbered = [(number, job) for number, job in enumerate(grid.jobs) if not job.problems]
    if before is None:
        print(f"sweep {folder}: {len(grid.jobs)} jobs", flush=True)
        threads = threads_of_a_job(master.hydra, len(grid.good))
        if any(config.run.num_threads is not None for config in grid.configs):
            threads = None
        run = grid.configs[0].run
        after = new_record(grid.jobs, grid.keys, threads, run.objective, run.objective_goal.value)
        OmegaConf.save(master, folder / MULTIRUN_FILE)
    else:
        require_same(before, grid.jobs, folder)
        decisions = [decide(folder, job) for _, job in numbered]
        print(plan_text(folder, decisions, len(grid.jobs) - len(grid.good)), flush=True)
        left = {each.job.name for each in decisions if each.action in (Action.skip, Action.leave)}
        numbered = [(number, job) for number, job in numbered if job.name not in left]
        after = new_record(grid.jobs, grid.keys, before.num_threads, before.objective, before.objective_goal)
    for refused in grid.jobs:
        if refused.problems:  # told at the end as well, which may be hours away
            print(f"{titled(refused.name, len(grid.jobs))}: cannot run: {'; '.join(refused.problems)}", flush=True)
    write_sweep(folder, after)
    write_table(folder)
    return numbered, after


def _launch(
    hydra: Hydra,
    master: DictConfig,
    job: TaskFunction,
    grid: Grid,
    todo: Numbered,
    sweep: SweepRecord,
    folder: Path,
) -> tuple[list[JobReturn], dict[str, SweepFailure]]:
    """Hand the jobs to Hydra's launcher, then look at what became of each job of the grid."""
    task = SweepJob(
        run=job,
        sweep_dir=str(folder),
        keys=tuple(grid.keys),
        num_jobs=len(grid.jobs),
        silences=jobs_at_once(master.hydra, len(todo)) > 1,
        ends_sweep=is_basic(master.hydra),
        num_threads=sweep.num_threads,
    )
    context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(master))
    results: dict[str, JobReturn] = {}
    trouble = ""
    # one at a time where nothing is lost by it, so that hydra.job.num is the job's own number
    size = 1 if is_basic(master.hydra) else batch_size(master.hydra) or max(len(todo), 1)
    with nullcontext() if talks_here(master.hydra) else watched(folder, sweep):
        for first in range(0, len(todo), size):
            batch = todo[first : first + size]
            launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=master)
            try:
                found = launcher.launch([_job_line(each, folder) for _, each in batch], initial_job_idx=batch[0][0])
                results |= {each.name: result for (_, each), result in zip(batch, found, strict=True)}
            except Exception as error:
                # launchers are other people's and raise what they like, such as when a job's process is killed; the jobs
                # that did finish have said so in their folders
                trouble = f"; {problems_of(error)[0]}"
    failed = dict(_unfinished(folder, grid, results, trouble))
    return [results[each.name] for each in grid.jobs if each.name in results], failed


def _job_line(job: PlannedJob, folder: Path) -> list[str]:
    """A job's overrides with its place on disk, which must not depend on which jobs are launched beside it."""
    return [*job.overrides, f"{SWEEP_DIR}={quoted(str(folder))}", f"hydra.sweep.subdir={quoted(job.name)}"]


def _unfinished(
    folder: Path, grid: Grid, results: dict[str, JobReturn], trouble: str
) -> Iterator[tuple[str, SweepFailure]]:
    records = {record.name: record for record in read_jobs(folder)}
    for job in grid.good:
        result, record = results.get(job.name), records[job.name]
        if record.standing is Standing.finished:
            continue
        if result is not None and result.status is JobStatus.FAILED:
            # asking for the return value would print a line of Hydra's
            error = result._return_value
            yield job.name, SweepFailure(job.overrides, problems_of(error), exit_status(error))
        elif record.standing is Standing.failed:
            yield job.name, SweepFailure(job.overrides, record.problems, record.exit_status or 1)
        elif record.standing is Standing.running:
            yield job.name, SweepFailure(job.overrides, ["still runs in another process"], 1)
        else:
            said = "; ".join(record.problems) or f"ended without finishing{trouble}"
            yield job.name, SweepFailure(job.overrides, [said], record.exit_status or 1)


def _finish(folder: Path, command: SweepCommand) -> None:
    """Write and print the table, and how the sweep goes on if it is not done."""
    write_table(folder)
    show_sweep(folder)
    print(f"\nsweep in {folder}, table in {write_table(folder)}", flush=True)
    can_go_on = {Standing.waiting, Standing.running, Standing.failed, Standing.interrupted}
    if any(record.standing in can_go_on for record in read_jobs(folder)):
        print(f"continue it: {continue_command(folder, command)}", flush=True)


def continue_command(folder: Path, command: SweepCommand) -> str:
    """The command that continues a sweep, as it is typed in a shell."""
    presets = [] if command.config_dir is None else ["--config-dir", command.config_dir]
    rest = [text for text in command.texts if not text.startswith(f"{SWEEP_DIR}=")]
    words = f"{shlex.join([*presets, *rest])} {setting_word(SWEEP_DIR, str(folder))} {RESUME}=true".lstrip()
    return f"{train_command()} -m {words}"


def _describe(
    hydra: Hydra, master: DictConfig, command: SweepCommand, grid: Grid, folder: Path
) -> dict[str, SweepFailure]:
    """Print what each job would do; of a sweep that is continued, what becomes of each."""
    if command.is_resumed and read_sweep(folder) is not None:
        decisions = [decide(folder, each) for each in grid.good]
        print(plan_text(folder, decisions, len(grid.jobs) - len(grid.good)), flush=True)
        return {}
    lines = [(number, _job_line(job, folder)) for number, job in enumerate(grid.jobs) if not job.problems]
    outcomes = describe_jobs(hydra, master, lines)
    return {
        job.name: SweepFailure(job.overrides, problems_of(error), exit_status(error))
        for job, error in zip(grid.good, outcomes, strict=True)
        if error is not None
    }


def _all_dry(configs: list[RootConfig]) -> bool:
    """Whether the jobs are only to be described; either all of them are or none is."""
    dry = {config.run.dry for config in configs}
    if len(dry) > 1:
        raise ConfigError("run.dry: some jobs of this sweep would be described and others run; give it one value")
    return dry == {True}

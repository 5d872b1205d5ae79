"""Sweeps whose jobs another sweeper chooses: `python train.py -m hydra/sweeper=tau_and_lr run.objective=eval/pass@8`."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from maxent_grpo.commands.sweep_table import show_sweep
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.report.read import MULTIRUN_FILE
from maxent_grpo.sweeps.command_line import SWEEP_DIR, SweepCommand, swept_by_config, text_of
from maxent_grpo.sweeps.failure import SweepError, SweepFailure
from maxent_grpo.sweeps.job import SweepJob, problems_of
from maxent_grpo.sweeps.launchers import is_basic, jobs_at_once, threads_of_a_job
from maxent_grpo.sweeps.owner import owned
from maxent_grpo.sweeps.plan import RESUME
from maxent_grpo.sweeps.record import Standing, SweepRecord, new_record, read_jobs, read_sweep, write_sweep
from maxent_grpo.sweeps.search import num_trials, require_search_space, tell_sweeper
from maxent_grpo.sweeps.table import write_table


def run_search(hydra: Hydra, master: DictConfig, command: SweepCommand, job: TaskFunction) -> None:
    """Let the chosen sweeper run ``job`` as often as it wants, each time judged by `run.objective`.

    Raises:
        ConfigError: the search itself cannot be read or run.
        SweepError: after all jobs, if any did not finish.
    """
    every = [*swept_by_config(master), *command.settings]
    shared = [override for override in command.settings if not override.is_sweep_override()]
    if command.is_resumed and not command.names_folder:
        raise ConfigError(f"{RESUME}=true: name the folder of the search with {SWEEP_DIR}=FOLDER")
    config = _checked(command, [text_of(override) for override in shared])
    require_search_space(every, command.config_dir)
    excluded = [override.key_or_group for override in shared]
    naming = [f"hydra.job.config.override_dirname.exclude_keys={excluded}"] if excluded else []
    master = command.master(hydra, *naming)
    tell_sweeper(master, config, command.for_hydra)
    folder = Path(os.path.abspath(master.hydra.sweep.dir))
    swept = [override.key_or_group for override in every if override.is_sweep_override()]
    keys = tuple(key for key in dict.fromkeys(swept) if key not in excluded)
    with owned(folder):
        before = read_sweep(folder)
        _settle(master, command, config, before, folder)
        task = _task(master, config, job, keys, folder)
        if before is not None:
            # their number is part of what equal jobs need
            task = replace(task, num_threads=before.num_threads)
        write_sweep(
            folder, new_record([], keys, task.num_threads, config.run.objective, config.run.objective_goal.value)
        )
        try:
            _let_search(hydra, master, command, task)
        finally:
            path = write_table(folder)
            show_sweep(folder)
            print(f"\nsearch in {folder}, table in {path}", flush=True)
    records = read_jobs(folder)
    failures = [
        SweepFailure(
            [f"{key}={value}" for key, value in each.changed.items()],
            each.problems or ["ended without finishing"],
            each.exit_status or 1,
        )
        for each in records
        if each.standing is not Standing.finished
    ]
    if failures:
        raise SweepError(len(records), failures)


def _checked(command: SweepCommand, shared: list[str]) -> RootConfig:
    """The configuration of what all jobs share."""
    config = command.checked(shared)
    if config.run.dry:
        raise ConfigError("run.dry=true: a search chooses its jobs while it runs, so that there are none to describe")
    if config.run.objective is None:
        raise ConfigError(
            "run.objective: a search needs the metric it is for; write run.objective=eval/pass@1, for example"
        )
    return config


def _settle(
    master: DictConfig, command: SweepCommand, config: RootConfig, before: SweepRecord | None, folder: Path
) -> None:
    """Refuse to mix two searches, or to continue one whose sweeper would not choose the same jobs again.

    A sweeper with a seed asks for the same jobs as long as it is given the same values; those that are finished give theirs
    without being run.
    """
    if before is None:
        return
    if not command.is_resumed:
        raise ConfigError(
            f"{SWEEP_DIR}={folder}: already holds a sweep; continue it with {RESUME}=true, or name another folder"
        )
    if OmegaConf.select(master, "hydra.sweeper.sampler.seed") is None:
        raise ConfigError(
            f"{RESUME}=true: a search goes on only where its sweeper chooses the same jobs again, which needs "
            "hydra.sweeper.sampler.seed, from its start on"
        )
    if before.jobs or (before.objective, before.objective_goal) != (
        config.run.objective,
        config.run.objective_goal.value,
    ):
        raise ConfigError(
            f"{RESUME}=true: {folder} holds another sweep ({f'for {before.objective}' if before.objective else 'a grid'}): "
            f"repeat the command that started it, or name another {SWEEP_DIR}"
        )


def _task(master: DictConfig, config: RootConfig, job: TaskFunction, keys: tuple[str, ...], folder: Path) -> SweepJob:
    count = num_trials(master)
    return SweepJob(
        run=job,
        sweep_dir=str(folder),
        keys=keys,
        num_jobs=count,
        objective=config.run.objective,
        is_search=True,
        silences=jobs_at_once(master.hydra, count) > 1,
        ends_sweep=is_basic(master.hydra),
        num_threads=threads_of_a_job(master.hydra, count) if config.run.num_threads is None else None,
    )


def _let_search(hydra: Hydra, master: DictConfig, command: SweepCommand, task: SweepJob) -> None:
    folder = Path(task.sweep_dir)
    context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(master))
    sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=task, config=master)
    # their own words on each trial would stand among the jobs'
    logging.getLogger("optuna").setLevel(logging.WARNING)
    logging.getLogger("hydra_plugins.hydra_optuna_sweeper").setLevel(logging.ERROR)
    OmegaConf.save(master, folder / MULTIRUN_FILE)
    print(f"search {folder}: {task.num_jobs} jobs for the best {task.objective}", flush=True)
    try:
        sweeper.sweep(arguments=[text_of(override) for override in command.settings])
    except ValueError as error:
        # Optuna tells of the best trial at its end, and has none where every job failed; the jobs say why
        if any(record.standing is Standing.finished for record in read_jobs(folder)):
            raise ConfigError(f"hydra/sweeper: {problems_of(error)[0]}") from error

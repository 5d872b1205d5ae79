"""Sweeps whose jobs another sweeper chooses: `python train.py -m hydra/sweeper=tau_and_lr run.objective=eval/pass@8`."""

from __future__ import annotations

import os
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from maxent_grpo.commands.sweep_table import show_sweep
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.sweeps.command_line import SWEEP_DIR, SweepCommand, swept_by_config, text_of
from maxent_grpo.sweeps.failure import SweepError, SweepFailure
from maxent_grpo.sweeps.job import SweepJob, problems_of
from maxent_grpo.sweeps.launchers import jobs_at_once, threads_of_a_job
from maxent_grpo.sweeps.owner import owned
from maxent_grpo.sweeps.plan import RESUME
from maxent_grpo.sweeps.record import Standing, new_record, read_jobs, read_sweep, write_sweep
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
    config = _checked(command, [text_of(override) for override in shared])
    require_search_space(every, command.config_dir)
    excluded = [override.key_or_group for override in shared]
    naming = [f"hydra.job.config.override_dirname.exclude_keys={excluded}"] if excluded else []
    master = command.master(hydra, *naming)
    tell_sweeper(master, config, command.for_hydra)
    folder = Path(os.path.abspath(master.hydra.sweep.dir))
    keys = tuple(override.key_or_group for override in every if override.is_sweep_override())
    with owned(folder):
        if read_sweep(folder) is not None:
            raise ConfigError(f"{SWEEP_DIR}={folder}: already holds a sweep; name another folder")
        task = _task(master, config, job, keys, folder)
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
            each.is_config_error,
        )
        for each in records
        if each.standing is not Standing.finished
    ]
    if failures:
        raise SweepError(len(records), failures)


def _checked(command: SweepCommand, shared: list[str]) -> RootConfig:
    """The configuration of what all jobs share."""
    if command.is_resumed:
        raise ConfigError(
            f"{RESUME}=true: continues a grid; a search goes on where its sweeper keeps it, for Optuna with "
            "hydra.sweeper.storage and hydra.sweeper.study_name, in a new hydra.sweep.dir"
        )
    config = command.checked(shared)
    if config.run.dry:
        raise ConfigError("run.dry=true: a search chooses its jobs while it runs, so that there are none to describe")
    if config.run.objective is None:
        raise ConfigError(
            "run.objective: a search needs the metric it is for; write run.objective=eval/pass@1, for example"
        )
    return config


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
        num_threads=threads_of_a_job(master.hydra, count) if config.run.num_threads is None else None,
    )


def _let_search(hydra: Hydra, master: DictConfig, command: SweepCommand, task: SweepJob) -> None:
    folder = Path(task.sweep_dir)
    context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(master))
    sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=task, config=master)
    OmegaConf.save(master, folder / "multirun.yaml")
    print(f"search {folder}: {task.num_jobs} jobs for the best {task.objective}", flush=True)
    try:
        sweeper.sweep(arguments=[text_of(override) for override in command.settings])
    except ValueError as error:
        # Optuna tells of the best trial at its end, and has none where every job failed; the jobs say why
        if any(record.standing is Standing.finished for record in read_jobs(folder)):
            raise ConfigError(f"hydra/sweeper: {problems_of(error)[0]}") from error

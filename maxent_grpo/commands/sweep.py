"""Sweeps in which a bad job fails alone: `python train.py -m scoring=grpo,maxent seed=0,1,2`.

Hydra composes a job's configuration inside the launcher, where one that cannot be composed ends the whole sweep. Here every
job passes the gates first, those that do are handed to Hydra's launcher, and all failures are reported at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import OmegaConf

from maxent_grpo.commands.dry import describe_jobs
from maxent_grpo.config.compose import hydra_session, parse_override, with_search_path
from maxent_grpo.config.compositions import CONFIG_NAME
from maxent_grpo.config.load import compose_checked, load_config
from maxent_grpo.config.presets import PRESETS
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError, MaxentGrpoError


@dataclass
class SweepFailure:
    """A job that did not finish: its overrides and what it raised."""

    overrides: Sequence[str]
    error: Exception


class SweepError(MaxentGrpoError):
    """Some jobs of a sweep failed; the others ran."""

    def __init__(self, num_jobs: int, failures: list[SweepFailure]) -> None:
        super().__init__(num_jobs, failures)
        self.num_jobs = num_jobs
        self.failures = failures

    def __str__(self) -> str:
        lines = [f"{len(self.failures)} of {self.num_jobs} jobs failed:"]
        for failure in self.failures:
            error = failure.error
            problems = error.problems if isinstance(error, ConfigError) else [f"{type(error).__name__}: {error}"]
            lines += [f"  - {' '.join(failure.overrides)}", *(f"      {problem}" for problem in problems)]
        return "\n".join(lines)


def run_sweep(overrides: list[str], job: TaskFunction, *, config_dir: str | None = None) -> list[JobReturn]:
    """Run ``job`` on every combination of the overrides' comma-separated values; with `run.dry` only describe each.

    Raises:
        ConfigError: the sweep itself cannot be read: an override, or the one preset of all jobs.
        SweepError: after all jobs, if any was refused or raised.
    """
    parsed = [parse_override(text) for text in overrides]
    for_hydra = [_text(override) for override in parsed if override.is_hydra_override()]
    settings = [override for override in parsed if not override.is_hydra_override()]
    # a preset that all jobs share may say what is swept, under hydra.sweeper.params
    presets = [_text(each) for each in settings if each.key_or_group == PRESETS and not each.is_sweep_override()]
    compose_checked([*for_hydra, *presets], config_dir=config_dir)
    with hydra_session() as hydra:
        of_all = [*for_hydra, f"hydra.mode={RunMode.MULTIRUN.name}", *presets]
        of_all, _ = with_search_path(of_all, config_dir)
        master = hydra.compose_config(CONFIG_NAME, of_all, RunMode.MULTIRUN, with_log_configuration=True)
        swept = [parse_override(f"{path}={values}") for path, values in (master.hydra.sweeper.params or {}).items()]
        jobs = [list(combination) for combination in itertools.product(*map(_values, [*swept, *settings]))]
        failures: list[SweepFailure] = []
        checked = [(each, _checked(each, for_hydra, config_dir, failures)) for each in jobs]
        good = [each for each, config in checked if config is not None]
        named = [[*each, *_naming([*swept, *settings])] for each in good]
        results: list[JobReturn] = []
        if _all_dry([config for _, config in checked if config is not None]):
            outcomes = describe_jobs(hydra, master, named)
            failures += [SweepFailure(each, error) for each, error in zip(good, outcomes, strict=True) if error]
        elif named:
            folder = Path(master.hydra.sweep.dir)
            folder.mkdir(parents=True, exist_ok=True)
            OmegaConf.save(master, folder / "multirun.yaml")
            context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(master))
            launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=job, config=master)
            results = list(launcher.launch(named, initial_job_idx=0))
            failures += [bad for each, result in zip(good, results, strict=True) for bad in _raised(each, result)]
    if failures:
        raise SweepError(len(jobs), failures)
    return results


def _text(override: Override) -> str:
    assert override.input_line is not None
    return override.input_line


def _values(override: Override) -> list[str]:
    """The overrides that a swept one stands for; of any other, itself."""
    if not override.is_sweep_override():
        return [_text(override)]
    if not override.is_discrete_sweep():
        raise ConfigError(f"{override.input_line}: a grid needs separate values, such as a,b or range(1,4)")
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _naming(settings: list[Override]) -> list[str]:
    """The override by which a job's folder is named after what the sweep changes, not after what all jobs share."""
    if not any(override.is_sweep_override() for override in settings):
        return []
    shared = [override.key_or_group for override in settings if not override.is_sweep_override()]
    return [f"hydra.job.config.override_dirname.exclude_keys={[*shared]}"]


def _checked(
    job: list[str], for_hydra: list[str], config_dir: str | None, failures: list[SweepFailure]
) -> RootConfig | None:
    """The job's configuration through the gates; None, and a failure, if it does not pass."""
    try:
        return load_config([*for_hydra, *job], config_dir=config_dir)
    except ConfigError as error:
        failures.append(SweepFailure(job, error))
        return None


def _all_dry(configs: list[RootConfig]) -> bool:
    """Whether the jobs are only to be described; either all of them are or none is."""
    dry = {config.run.dry for config in configs}
    if len(dry) > 1:
        raise ConfigError("run.dry: some jobs of this sweep would be described and others run; give it one value")
    return dry == {True}


def _raised(job: list[str], result: JobReturn) -> Iterator[SweepFailure]:
    try:
        _ = result.return_value
    except Exception as error:
        # the job is the user's run and may raise anything; its failure must not hide those of the others
        yield SweepFailure(job, error)

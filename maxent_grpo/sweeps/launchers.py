"""What Hydra's plugins need to run jobs of this program: whether they are installed, how many jobs run at once, with what threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from maxent_grpo.config.installed import find_module
from maxent_grpo.config.presets import config_directory

PLUGINS = {
    "hydra_joblib_launcher": "hydra-joblib-launcher",
    "hydra_submitit_launcher": "hydra-submitit-launcher",
    "hydra_optuna_sweeper": "hydra-optuna-sweeper",
    "hydra_ray_launcher": "hydra-ray-launcher",
}
"""Module, inside hydra_plugins, to distribution."""
OPTIONS = {
    ("hydra/launcher", "joblib"): "hydra_joblib_launcher",
    ("hydra/launcher", "submitit_local"): "hydra_submitit_launcher",
    ("hydra/launcher", "submitit_slurm"): "hydra_submitit_launcher",
    ("hydra/launcher", "ray"): "hydra_ray_launcher",
    ("hydra/launcher", "ray_aws"): "hydra_ray_launcher",
    ("hydra/sweeper", "optuna"): "hydra_optuna_sweeper",
}
"""Group and option to the plugin that it comes with."""
OF_EXTRA = ("hydra_joblib_launcher", "hydra_submitit_launcher", "hydra_optuna_sweeper")
"""Plugins that the extra `sweeps` brings."""
EXTRA = "pip install -e '.[sweeps]'"
BASIC, JOBLIB, LOCAL = "BasicLauncher", "JoblibLauncher", "LocalLauncher"


def missing_plugins(overrides: Sequence[Override]) -> Iterator[str]:
    """The sentence of every chosen launcher or sweeper that is not installed."""
    for override in overrides:
        group, option = override.key_or_group, str(override.value())
        plugin = OPTIONS.get((group, _made_of(group, option)))
        if plugin is not None and find_module(f"hydra_plugins.{plugin}") is None:
            install = EXTRA if plugin in OF_EXTRA else f"pip install {PLUGINS[plugin]}"
            yield f"{group}={option}: {PLUGINS[plugin]} is not installed; {install}"


def _made_of(group: str, option: str) -> str:
    """The option that a preset of this project begins with, or the preset before it does; of any other, itself."""
    file = Path(config_directory()) / group / f"{option}.yaml"
    if not file.is_file():
        return option
    defaults = OmegaConf.load(file).defaults
    begins = next((entry for entry in defaults if isinstance(entry, str) and entry != "_self_"), option)
    return begins if begins == option else _made_of(group, begins)


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs_at_once(hydra: DictConfig, num_jobs: int) -> int:
    """How many jobs a launcher runs on this machine at the same time; 1 for one that runs them elsewhere."""
    launcher = hydra.launcher
    kind = _kind(hydra)
    batch = min(num_jobs, batch_size(hydra) or num_jobs)
    if kind == LOCAL:
        return batch
    if kind == JOBLIB:
        count = int(launcher.n_jobs)
        return min(batch, count if count > 0 else max(1, num_cores() + 1 + count))
    return 1


def batch_size(hydra: DictConfig) -> int | None:
    """How many jobs are handed to the launcher at a time (`hydra.sweeper.max_batch_size`); None for all."""
    return hydra.sweeper.get("max_batch_size")


def threads_of_a_job(hydra: DictConfig, num_jobs: int) -> int | None:
    """CPU threads for each of the jobs, so that those which run at once share the cores; None where nothing need be shared.

    A number that the environment gives in OMP_NUM_THREADS is kept.
    """
    at_once = jobs_at_once(hydra, num_jobs)
    if at_once == 1 or "OMP_NUM_THREADS" in os.environ:
        return None
    asked = hydra.launcher.get("cpus_per_task")
    return int(asked) if asked else max(1, num_cores() // at_once)


def is_basic(hydra: DictConfig) -> bool:
    """Whether the jobs run in this process, one after the other."""
    return _kind(hydra) == BASIC


def talks_here(hydra: DictConfig) -> bool:
    """Whether what jobs print appears in this terminal."""
    return _kind(hydra) in (BASIC, JOBLIB)


def _kind(hydra: DictConfig) -> str:
    return str(hydra.launcher.get("_target_", "")).rpartition(".")[2]

"""`run.dry=true`: describe a run, or each job of a sweep, without Hydra making their folders."""

from __future__ import annotations

from pathlib import Path

from hydra._internal.hydra import Hydra
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from maxent_grpo.config.complain import complain
from maxent_grpo.config.compose import hydra_session, with_search_path
from maxent_grpo.config.compositions import CONFIG_NAME
from maxent_grpo.config.installed import program
from maxent_grpo.config.load import check, warnings
from maxent_grpo.errors import MaxentGrpoError
from maxent_grpo.launched import place


def describe_run(overrides: list[str], *, config_dir: str | None = None) -> None:
    """Print what a single run would do.

    Raises:
        ConfigError, DataError, CheckpointError: it would stop before its first step.
    """
    with hydra_session() as hydra:
        composed, _ = with_search_path(overrides, config_dir)
        config = hydra.compose_config(CONFIG_NAME, composed, RunMode.RUN)
    _describe(config, Path(config.hydra.run.dir))


def describe_jobs(hydra: Hydra, master: DictConfig, jobs: list[tuple[int, list[str]]]) -> list[Exception | None]:
    """Print what each job of a sweep, given by number and overrides, would do in its folder; what each raised, or None."""
    outcomes: list[Exception | None] = []
    for number, overrides in jobs:
        config = hydra.config_loader.load_sweep_config(master, list(overrides))
        with open_dict(config):
            config.hydra.job.num, config.hydra.job.id = number, str(number)
        print(f"\njob {number + 1}: {' '.join(config.hydra.overrides.task)}\n", flush=True)
        try:
            _describe(config, Path(config.hydra.sweep.dir) / config.hydra.sweep.subdir)
            outcomes.append(None)
        except MaxentGrpoError as error:
            outcomes.append(error)
    return outcomes


def _describe(config: DictConfig, folder: Path) -> None:
    with open_dict(config):
        del config["hydra"]
    config.run.dir = str(folder)
    checked = check(config)
    for sentence in warnings(checked) if place().is_main else []:
        complain(program(), f"warning: {sentence}")
    from maxent_grpo.training.preview.run import start

    start(checked)

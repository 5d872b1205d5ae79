"""Sweeps whose jobs another sweeper chooses, such as `hydra/sweeper=optuna`: what is checked before, and what it is told."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, cast

from hydra.core.override_parser.types import IntervalSweep, Override
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from maxent_grpo.config.checkpoint import MetricGoal
from maxent_grpo.config.load import compose_checked
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.metric_table import METRICS, metric_entry

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
DIRECTIONS = {MetricGoal.max: "maximize", MetricGoal.min: "minimize"}


def is_search(master: DictConfig) -> bool:
    """Whether another sweeper than Hydra's grid chooses the jobs."""
    return master.hydra.sweeper.get("_target_") != BASIC


def objective_problems(config: RootConfig) -> Iterator[str]:
    """What is wrong with the metric that jobs are judged by, as far as names tell."""
    name = config.run.objective
    if name is None:
        return
    try:
        metric_entry(name)
    except KeyError:
        near = difflib.get_close_matches(name, [entry for entry in METRICS if "*" not in entry], n=1)
        hint = f"; did you mean {near[0]}?" if near else "; docs/metrics.md lists them all"
        yield f"run.objective={name}: there is no such metric{hint}"
        return
    if name.startswith("eval/") and not config.evaluation.enabled:
        yield (
            f"run.objective={name} is measured by evaluations, which evaluation.enabled=false switches off: set "
            "evaluation.enabled=true, or name another metric"
        )


def require_search_space(settings: Sequence[Override], config_dir: str | None) -> None:
    """Compose every choice of a search once, because one that cannot be composed would end the search in its middle.

    Raises:
        ConfigError: with the problems of all choices.
    """
    values = [_values(override) for override in settings]
    base = [each[0] for each in values]
    problems: list[str] = []
    for place, choices in enumerate(values):
        for choice in choices if place == 0 else choices[1:]:
            try:
                compose_checked([*base[:place], choice, *base[place + 1 :]], config_dir=config_dir)
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _values(override: Override) -> list[str]:
    """The choices of an override; of an interval its lower end, which stands for all of it."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        assert override.input_line is not None
        return [override.input_line]
    if override.is_discrete_sweep():
        return [f"{key}={value}" for value in override.sweep_string_iterator()]
    return [f"{key}={cast(IntervalSweep, override.value()).start}"]


def tell_sweeper(master: DictConfig, config: RootConfig, for_hydra: Sequence[Override]) -> None:
    """Give a sweeper of Optuna's kind the direction that `run.objective_goal` says, and let it go on after failed jobs.

    Raises:
        ConfigError: the command line says either a second time, or where a study is to be kept.
    """
    said = {override.key_or_group: override for override in for_hydra}
    settings: dict[str, tuple[Any, str]] = {
        "direction": (DIRECTIONS[config.run.objective_goal], "run.objective_goal=max or min says it"),
        "max_failure_rate": (1.0, "a failed job never ends a search here"),
    }
    if master.hydra.sweeper.get("storage") is not None:
        raise ConfigError(
            f"hydra.sweeper.storage={master.hydra.sweeper.storage}: searches are kept in their folder and continued with "
            "run.sweep_resume=true; leave it out"
        )
    for name, (value, reason) in settings.items():
        path = f"hydra.sweeper.{name}"
        if path in said:
            raise ConfigError(f"{said[path].input_line}: leave it out; {reason}")
        if name in master.hydra.sweeper:
            with read_write(master.hydra), open_dict(master.hydra):
                OmegaConf.update(master, path, value)


def num_trials(master: DictConfig) -> int:
    """How many jobs a search will make, 0 where its sweeper does not tell."""
    return int(master.hydra.sweeper.get("n_trials") or 0)

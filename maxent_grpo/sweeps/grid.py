"""The jobs of a grid: every combination of the swept values, through the gates, with its folder."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, cast

from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra._internal.hydra import Hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.secrets import redacted
from maxent_grpo.errors import ConfigError
from maxent_grpo.sweeps.command_line import SweepCommand, swept_by_config, text_of
from maxent_grpo.sweeps.job import changed_values
from maxent_grpo.sweeps.record import PlannedJob

PLAIN_NAME = "${hydra.job.num}-${hydra.job.override_dirname}"
"""The name that conf/config.yaml gives to a job's folder."""
LONGEST_NAME = 255
"""Bytes of a folder's name that file systems take."""


@dataclass
class Grid:
    """The jobs of a grid, and the configuration of the good ones."""

    jobs: list[PlannedJob]
    configs: list[RootConfig]
    keys: list[str]

    @property
    def good(self) -> list[PlannedJob]:
        """The jobs that can run."""
        return [job for job in self.jobs if not job.problems]


def plan_grid(hydra: Hydra, master: DictConfig, command: SweepCommand) -> Grid:
    """Every combination, through the gates, with the folder that Hydra would give it as the job of its number."""
    every = [*swept_by_config(master), *command.settings]
    shared = [override.key_or_group for override in every if not override.is_sweep_override()]
    keys = [override.key_or_group for override in every if override.is_sweep_override()]
    grid = Grid([], [], keys)
    for number, combination in enumerate(itertools.product(*map(_values, every))):
        overrides = list(combination)
        changed = changed_values(overrides, tuple(keys))
        try:
            grid.configs.append(command.checked(overrides))
            name, problems = _folder_name(hydra, master, number, overrides, shared if keys else []), []
            longest = max(len(part.encode()) for part in name.split("/"))
            if longest > LONGEST_NAME:
                problems = [
                    f"its folder's name would be {longest} bytes long, and file systems take {LONGEST_NAME}: name folders "
                    "otherwise, such as hydra.sweep.subdir='${hydra.job.num}'"
                ]
            if redacted(name) != name:
                name, problems = (
                    str(number),
                    [
                        "its folder would be named after a secret: name folders otherwise, such as "
                        "hydra.sweep.subdir='${hydra.job.num}'"
                    ],
                )
        except ConfigError as error:
            name = f"{number}-{','.join(f'{key}={value}' for key, value in changed.items())}"
            name = name if redacted(name) == name else str(number)
            problems = error.problems
        grid.jobs.append(PlannedJob(name, overrides, changed, problems))
    return grid


def _folder_name(hydra: Hydra, master: DictConfig, number: int, overrides: list[str], shared: list[str]) -> str:
    """A job's folder inside the sweep's, named after what the sweep changes, not after what all jobs share."""
    naming = master.hydra.job.config.override_dirname
    unresolved = cast(dict[str, Any], OmegaConf.to_container(master.hydra.sweep, resolve=False))
    if unresolved["subdir"] == PLAIN_NAME:
        # what composing the job would come to, at a fraction of the time
        parsed = OverridesParser.create().parse_overrides(overrides)
        excluded = [*shared, *naming.exclude_keys]
        return f"{number}-{get_overrides_dirname(parsed, excluded, naming.item_sep, naming.kv_sep)}"
    exclude = [f"hydra.job.config.override_dirname.exclude_keys={shared}"] if shared else []
    config = hydra.config_loader.load_sweep_config(master, [*overrides, *exclude])
    with open_dict(config):
        config.hydra.job.num, config.hydra.job.id = number, str(number)
    return str(config.hydra.sweep.subdir)


def _values(override: Override) -> list[str]:
    """The overrides that a swept one stands for; of any other, itself."""
    if not override.is_sweep_override():
        return [text_of(override)]
    if not override.is_discrete_sweep():
        raise ConfigError(f"{override.input_line}: a grid needs separate values, such as a,b or range(1,4)")
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]

"""A sweep's command line: what is for Hydra, what is for the jobs, and what only says that a sweep is continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydra._internal.hydra import Hydra
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig

from maxent_grpo.config.compose import parse_override, with_search_path
from maxent_grpo.config.compositions import CONFIG_NAME
from maxent_grpo.config.load import load_config
from maxent_grpo.config.presets import PRESETS
from maxent_grpo.config.resumed import RUN_DIR
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.sweeps.launchers import missing_plugins
from maxent_grpo.sweeps.plan import RESUME
from maxent_grpo.sweeps.search import objective_problems

SWEEP_DIR = "hydra.sweep.dir"


@dataclass
class SweepCommand:
    """A sweep's command line, sorted."""

    texts: list[str]
    """As typed, without what only says that a sweep is continued."""
    for_hydra: list[Override]
    settings: list[Override]
    is_resumed: bool
    config_dir: str | None

    @property
    def presets(self) -> list[str]:
        """A preset that all jobs share, which may say what is swept, under hydra.sweeper.params."""
        return [
            text_of(each) for each in self.settings if each.key_or_group == PRESETS and not each.is_sweep_override()
        ]

    @property
    def names_folder(self) -> bool:
        """Whether the sweep's folder was said."""
        return any(override.key_or_group == SWEEP_DIR for override in self.for_hydra)

    def master(self, hydra: Hydra, *more: str) -> DictConfig:
        """The sweep's own configuration."""
        of_all = [*map(text_of, self.for_hydra), f"hydra.mode={RunMode.MULTIRUN.name}", *more, *self.presets]
        of_all, _ = with_search_path(of_all, self.config_dir)
        return hydra.compose_config(CONFIG_NAME, of_all, RunMode.MULTIRUN, with_log_configuration=True)

    def checked(self, job: Sequence[str]) -> RootConfig:
        """A job's configuration through the gates.

        Raises:
            ConfigError: with every problem there is.
        """
        # of Hydra's own settings only this one says anything of a job, and without the others composing is much cheaper
        folders = [text_of(override) for override in self.for_hydra if override.key_or_group == "hydra.searchpath"]
        config = load_config([*folders, *job], config_dir=self.config_dir)
        problems = list(objective_problems(config))
        if problems:
            raise ConfigError(problems)
        return config


def sort_command(overrides: list[str], config_dir: str | None) -> SweepCommand:
    """The command line without `run.sweep_resume`, which is the sweep's and no job's.

    Raises:
        ConfigError: an override cannot be read, chooses a plugin that is not installed, or names one folder for all jobs.
    """
    parsed = [parse_override(text) for text in overrides]
    resumes = [override for override in parsed if override.key_or_group == RESUME]
    for override in resumes:
        if not isinstance(override.value(), bool):
            raise ConfigError(f"{override.input_line}: must be true or false")
    problems = list(missing_plugins([override for override in parsed if override.is_hydra_override()]))
    problems += [
        f"{text_of(override)}: the jobs of a sweep have folders of their own inside the sweep's; write {SWEEP_DIR}=FOLDER for that"
        for override in parsed
        if override.key_or_group == RUN_DIR
    ]
    if problems:
        raise ConfigError(problems)
    rest = [override for override in parsed if override.key_or_group != RESUME]
    return SweepCommand(
        texts=list(map(text_of, rest)),
        for_hydra=[override for override in rest if override.is_hydra_override()],
        settings=[override for override in rest if not override.is_hydra_override()],
        is_resumed=bool(resumes) and resumes[-1].value() is True,
        config_dir=config_dir,
    )


def text_of(override: Override) -> str:
    """An override as it was typed."""
    assert override.input_line is not None
    return override.input_line


def swept_by_config(master: DictConfig) -> list[Override]:
    """What the sweep's own configuration sweeps, under hydra.sweeper.params."""
    params = master.hydra.sweeper.get("params") or {}
    return [parse_override(f"{path}={values}") for path, values in params.items()]

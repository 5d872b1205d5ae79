"""Group-relative policy optimisation of language models, for notebooks and scripts.

    import maxent_grpo

    maxent_grpo.run(["scoring=grpo", "seed=3"])

    config = maxent_grpo.compose("scoring=grpo", "seed=3")
    config.optimization.total_training_steps = 50
    result = maxent_grpo.run(config)

An option of your own is a dataclass, made known with ``add_option``; ``docs/add_a_method.md`` adds a method so, and
``docs/add_a_task.md`` a task with ``add_task``.

The overrides are those of the command line, and pass the same checks. Importing this package imports neither torch nor Hydra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from omegaconf import DictConfig

    from maxent_grpo.config.data import DataConfig
    from maxent_grpo.config.root import RootConfig
    from maxent_grpo.tasks.base import Task
    from maxent_grpo.training.setup import RunResult

__all__ = ["add_option", "add_task", "compose", "run"]


def add_option(group: str, name: str, node: type) -> None:
    """Make ``group=name`` an option in this process, with the settings and defaults of a dataclass.

    Raises:
        ConfigError: there is no such group, the dataclass is not of its kind, or the name is taken.
    """
    from maxent_grpo.config.extend import add_option as add

    add(group, name, node)


def add_task(name: str, node: type[DataConfig], build: Callable[[Any], Task]) -> None:
    """Make ``data=name`` an option in this process: settings of a dataclass, of which ``build`` makes the task.

    Raises:
        ConfigError: the dataclass does not extend ``DataConfig``, or the name is taken.
    """
    from maxent_grpo.config.extend import add_option as add
    from maxent_grpo.tasks.build import add_builder

    add("data", name, node)
    add_builder(node, build)


def compose(*overrides: str) -> RootConfig:
    """The checked configuration that the overrides ask for; change its fields freely, ``run`` checks it again.

    Raises:
        ConfigError: with every problem there is.
    """
    from maxent_grpo.config.load import load_config
    from maxent_grpo.config.resumed import with_run_overrides

    for given in overrides:
        if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers need not be checked
            raise TypeError(
                f"compose takes overrides one by one, as in compose('scoring=grpo', 'seed=3'), not {given!r}"
            )
    return load_config(with_run_overrides(overrides))


def run(config: Sequence[str] | RootConfig | DictConfig = ()) -> RunResult:
    """Train as configured, in this process; with `run.dry=true` only print what would be done.

    Args:
        config: overrides as on the command line, a configuration from ``compose``, or a configuration composed by Hydra.

    Raises:
        ConfigError: with every problem there is, before torch is imported.
    """
    from omegaconf import DictConfig

    from maxent_grpo.config.load import check, check_object
    from maxent_grpo.config.resumed import with_run_overrides
    from maxent_grpo.config.root import RootConfig
    from maxent_grpo.config.said import as_overrides

    if isinstance(config, str):
        raise TypeError(f"run takes a list of overrides: write run([{config!r}])")
    if isinstance(config, dict):
        said = [f"{path}={value}" for path, value in config.items()]
        raise TypeError(f"run takes a list of overrides: write run({said})")
    overrides: list[str] = []
    if isinstance(config, RootConfig):
        checked = check_object(config)
        overrides = as_overrides(checked)
    elif isinstance(config, DictConfig):
        checked = check(config)
    else:
        overrides = with_run_overrides(config)
        checked = compose(*overrides)
    from maxent_grpo.training.preview.run import start

    return start(checked, overrides)

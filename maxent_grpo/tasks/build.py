"""From the `data` settings to a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maxent_grpo.config.data import ColoringDataConfig, CountdownDataConfig, DataConfig, ReasoningGymDataConfig
from maxent_grpo.config.data_sources import HubDataConfig, TableDataConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.tasks.answer_part import graded_by_part
from maxent_grpo.tasks.base import Task
from maxent_grpo.tasks.coloring import build_coloring
from maxent_grpo.tasks.countdown import build_countdown


def build_task(config: DataConfig) -> Task:
    """Build the task that ``config``'s type names, its grader seeing the part of completions that the settings name.

    Raises:
        ConfigError: no builder knows the type of ``config``.
        DataError: the task's problems cannot be made or read.
    """
    builder = _BUILDERS.get(type(config))
    if builder is None:
        known = ", ".join(kind.__name__ for kind in _BUILDERS)
        raise ConfigError(
            f"no task can be built from {type(config).__name__}; known are {known}. Choose data=coloring, data=countdown, data=table or data=hub."
        )
    return graded_by_part(builder(config), config.answer_in, config.assistant_prefix)


def _build_coloring(config: DataConfig) -> Task:
    assert isinstance(config, ColoringDataConfig)
    return build_coloring(config)


def _build_countdown(config: DataConfig) -> Task:
    assert isinstance(config, CountdownDataConfig)
    return build_countdown(config)


def _build_table(config: DataConfig) -> Task:
    from maxent_grpo.tasks.text_task import build_table  # what reads tables takes a while to import

    assert isinstance(config, TableDataConfig)
    return build_table(config)


def _build_hub(config: DataConfig) -> Task:
    from maxent_grpo.tasks.text_task import build_hub

    assert isinstance(config, HubDataConfig)
    return build_hub(config)


def _build_reasoning_gym(config: DataConfig) -> Task:
    assert isinstance(config, ReasoningGymDataConfig)
    from maxent_grpo.tasks.reasoning_gym import ReasoningGymTask  # an optional dependency

    return ReasoningGymTask(config)


def add_builder(kind: type[DataConfig], builder: Callable[[Any], Task]) -> None:
    """Let ``build_task`` make a task of settings of this very type by calling ``builder`` with them."""
    _BUILDERS[kind] = builder


_BUILDERS: dict[type[DataConfig], Callable[[DataConfig], Task]] = {
    ColoringDataConfig: _build_coloring,
    CountdownDataConfig: _build_countdown,
    TableDataConfig: _build_table,
    HubDataConfig: _build_hub,
    ReasoningGymDataConfig: _build_reasoning_gym,
}

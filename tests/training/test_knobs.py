"""Every setting does something: what it is there for, and nothing else."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.knobs import KNOBS, Knob, largest_weight_change, same_training, trains
from support.observe import Seen, observe
from support.runs import changed, completion_lines, configured, metric_lines, only_reward, train

from maxent_grpo.config.checkpoint import CheckpointConfig
from maxent_grpo.config.controller import FixedControllerConfig
from maxent_grpo.config.data import ColoringDataConfig
from maxent_grpo.config.declared import settings
from maxent_grpo.config.evaluation import EvaluationConfig
from maxent_grpo.config.generation import LocalGenerationConfig
from maxent_grpo.config.logging import LoggingConfig
from maxent_grpo.config.model import TinyModelConfig
from maxent_grpo.config.optimization import AdamWConfig
from maxent_grpo.config.reward import TaskRewardConfig
from maxent_grpo.config.run import RunConfig
from maxent_grpo.config.scoring import BatchingConfig, DrGrpoScoringConfig
from maxent_grpo.errors import ConfigError, RewardError
from maxent_grpo.tasks.base import Task, TaskRow
from maxent_grpo.training import setup
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.types.runtime import BatchingSettings, ScoringSettings

GROUPS: dict[str, type] = {
    "model": TinyModelConfig,
    "data": ColoringDataConfig,
    "generation": LocalGenerationConfig,
    "scoring": DrGrpoScoringConfig,
    "optimization": AdamWConfig,
    "controller": FixedControllerConfig,
    "reward": TaskRewardConfig,
    "evaluation": EvaluationConfig,
    "logging": LoggingConfig,
    "checkpoint": CheckpointConfig,
    "run": RunConfig,
}
QUICK = ("scoring=dr_grpo", "evaluation.enabled=false")

ELSEWHERE = {
    "generation.penalty.gen_best_of": "test_best_of_is_refused_by_a_sampler_that_does_not_offer_it",
    "generation.max_retry_rounds": "test_retry_rounds_decide_whether_a_slow_sampler_loses_prompts",
    "data.long_prompts": "test_long_prompts_are_dropped_or_cut",
    "model.warm_start.cache_dir": "test_a_warm_start_is_kept_in_its_folder_and_read_from_it",
    "logging.console": "test_the_console_speaks_or_is_silent",
    "checkpoint.resume_from": "test_resuming_takes_over_the_steps_already_made",
    "controller.paths.state_path": "test_controller_state_is_written_where_asked_and_not_over_another_run",
    "controller.paths.overwrite_existing": "test_controller_state_is_written_where_asked_and_not_over_another_run",
    "controller.paths.resume_from": "test_controllers_alone_can_continue_from_another_run",
    "reward.on_error": "test_a_failing_term_stops_the_run_or_abstains",
    "run.dir": "test_a_run_goes_into_its_folder",
}
"""Settings whose effect two plain runs do not show, and the test of this module that does."""


def test_every_setting_has_a_row_or_a_test() -> None:
    declared = {setting.path for group, kind in GROUPS.items() for setting in settings(kind, f"{group}.")} | {"seed"}
    rows = [knob.path for knob in KNOBS]
    assert len(set(rows)) == len(rows)
    assert declared == set(rows) | set(ELSEWHERE)
    assert not set(rows) & set(ELSEWHERE)
    assert [name for name in ELSEWHERE.values() if name not in globals()] == []


def test_every_field_of_the_scoring_settings_can_be_set() -> None:
    assert {field.name for field in fields(ScoringSettings)} == {field.name for field in fields(DrGrpoScoringConfig)}
    assert {field.name for field in fields(BatchingSettings)} - {"prompt_length_cache_get"} == {
        field.name for field in fields(BatchingConfig)
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("knobs")


@pytest.fixture(scope="module")
def without(folder: Path) -> Callable[[tuple[str, ...]], Seen]:
    """The run under some overrides with nothing changed, made once."""

    @cache
    def run(base: tuple[str, ...]) -> Seen:
        return observe(configured(folder / f"base-{len(list(folder.iterdir()))}", *base))

    return run


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.path)
def test_a_setting_does_what_it_is_there_for(
    without: Callable[[tuple[str, ...]], Seen], folder: Path, tmp_path: Path, knob: Knob
) -> None:
    base = (*QUICK, f"model.warm_start.cache_dir={folder / 'cache'}", *knob.base)
    after = observe(changed(configured(tmp_path / "run", *base), {knob.path: knob.value}))
    knob.effect(without(base), after)

"""Every setting does something: what it is there for, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import cast

import datasets
import pytest
from support.knob_effects import largest_weight_change, same_training
from support.knobs import KNOBS, Knob
from support.observe import Seen, observe
from support.parallel_knobs import PARALLEL_KNOBS
from support.runs import configured
from support.source_knobs import (
    HUB_CHANGES,
    TABLE_CHANGES,
    before_and_after,
    written_tables,
)
from support.vllm_knobs import VLLM_KNOBS

from maxent_grpo.config.data_sources import HubDataConfig, settled_sources
from maxent_grpo.config.declared import all_settings
from maxent_grpo.config.load import load_config
from maxent_grpo.config.scoring import BatchingConfig, DrGrpoScoringConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.types.runtime import BatchingSettings, ScoringSettings

IN_FILES = (
    VLLM_KNOBS
    | PARALLEL_KNOBS
    | {
        "data.chat_template_kwargs": (
            "tasks/test_template_variables.py",
            "test_a_run_asks_with_the_variables_and_its_model_card_says_so",
        )
    }
)
QUICK = ("scoring=dr_grpo", "evaluation.enabled=false")

ELSEWHERE = {
    "generation.penalty.gen_best_of": "test_best_of_is_refused_by_a_sampler_that_does_not_offer_it",
    "generation.max_retry_rounds": "test_retry_rounds_decide_whether_a_slow_sampler_loses_prompts",
    "data.long_prompts": "test_long_prompts_are_dropped_or_cut",
    "data.examples_file": "test_examples_of_a_file_are_shown_before_the_question",
    "model.name": "test_a_model_of_ones_own_is_read_with_its_tokenizer_and_template",
    "model.revision": "test_a_version_of_a_hub_model_is_asked_for",
    "model.trust_remote_code": "test_code_of_a_model_is_run_only_when_it_is_trusted",
    "model.tokenizer": "test_a_model_of_ones_own_is_read_with_its_tokenizer_and_template",
    "model.chat_template": "test_a_model_of_ones_own_is_read_with_its_tokenizer_and_template",
    "model.cache_dir": "test_the_packaged_model_is_looked_for_in_its_folder",
    "model.compile": "test_compiling_changes_how_training_runs_and_not_what_it_computes",
    "model.warm_start.cache_dir": "test_a_warm_start_is_kept_in_its_folder_and_read_from_it",
    "model.lora.dropout": "test_dropout_beside_an_adapter_is_refused",
    "model.lora.adapter": "test_a_run_starts_from_the_adapter_that_it_is_given",
    "logging.console": "test_the_console_speaks_or_is_silent",
    **{
        f"logging.wandb.{name}": "test_settings_of_wandb_name_and_place_the_run"
        for name in ("project", "entity", "name", "group", "tags", "mode", "continue_run")
    },
    "checkpoint.resume_from": "test_resuming_takes_over_the_steps_already_made",
    "controller.paths.state_path": "test_controller_state_is_written_where_asked_and_not_over_another_run",
    "controller.paths.overwrite_existing": "test_controller_state_is_written_where_asked_and_not_over_another_run",
    "controller.paths.resume_from": "test_controllers_alone_can_continue_from_another_run",
    "reward.on_error": "test_a_failing_term_stops_the_run_or_abstains",
    "reward.numeric.absolute": "test_a_number_may_be_off_by_its_tolerance",
    "reward.numeric.relative": "test_a_number_may_be_off_by_its_tolerance",
    "reward.regex.time_limit": "test_a_search_is_given_its_time",
    **{f"data.{name}": "test_a_setting_of_a_table_decides_its_rows" for name in TABLE_CHANGES},
    **{f"data.{name}": "test_a_setting_of_a_data_set_decides_its_rows" for name in HUB_CHANGES},
    "data.revision": "test_a_revision_is_one_of_the_hub_alone",
    "data.check_answers": "test_answers_are_shown_to_the_grader_at_the_start",
    "data.on_bad_row": "test_broken_rows_stop_the_run_or_are_left_out",
    "data.tasks": "test_families_and_their_settings_decide_the_problems",
    "data.task_settings": "test_families_and_their_settings_decide_the_problems",
    "data.cache_dir": "test_files_made_of_the_data_are_kept_in_their_folder",
    "run.dir": "test_a_run_goes_into_its_folder",
    "run.max_hours": "test_a_run_has_its_time",
    "run.requeue": "test_a_job_that_is_out_of_time_is_queued_again_where_that_is_asked_for",
    "run.on_nonfinite": "test_a_step_that_is_not_finite_stops_the_run_or_is_left_out",
    "run.max_nonfinite": "test_a_step_that_is_not_finite_stops_the_run_or_is_left_out",
    "run.dry": "test_a_dry_run_leaves_nothing",
    "run.sweep_resume": "test_a_sweep_goes_on_only_where_that_is_asked",
    "run.objective": "test_the_best_job_of_a_sweep_stands_first",
    "run.objective_goal": "test_the_best_job_of_a_sweep_stands_first",
}
"""Settings whose effect two plain runs do not show, and the test of this module or of ``test_knobs_alone`` that does."""


def test_every_setting_has_a_row_or_a_test() -> None:
    declared = {setting.path for setting in all_settings()}
    rows = [knob.path for knob in KNOBS]
    assert len(set(rows)) == len(rows)
    assert declared == set(rows) | set(ELSEWHERE) | set(IN_FILES)
    assert not set(rows) & (set(ELSEWHERE) | set(IN_FILES))
    # some of these need vLLM or several processes, so that their files are read rather than imported
    tests = Path(__file__).parents[1]
    files = {file: (tests / file).read_text() for file, _ in IN_FILES.values()}
    assert [name for file, name in IN_FILES.values() if f"def {name}(" not in files[file]] == []
    alone = (Path(__file__).parent / "test_knobs_alone.py").read_text()
    assert [name for name in ELSEWHERE.values() if name not in globals() and f"def {name}(" not in alone] == []


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


LONG_FORM = (
    *("controller.", "scoring.", "evaluation.", "checkpoint.", "reward.styles", "run.profile"),
    *("generation.penalty.", "model.warm_start.", "data.num_", "data.min_", "data.max_"),
)
"""Settings whose worked numbers stand in tests of their own: that two whole runs show them too is left to the long form."""


@pytest.mark.parametrize(
    "knob",
    [pytest.param(knob, marks=pytest.mark.slow if knob.path.startswith(LONG_FORM) else ()) for knob in KNOBS],
    ids=lambda knob: knob.path,
)
def test_a_setting_does_what_it_is_there_for(
    without: Callable[[tuple[str, ...]], Seen], folder: Path, tmp_path: Path, knob: Knob
) -> None:
    base = (*QUICK, f"model.warm_start.cache_dir={folder / 'cache'}", *knob.base)
    after = observe(configured(tmp_path / "run", *base, settings={knob.path: knob.value}))
    knob.effect(without(base), after)


@pytest.fixture(scope="module")
def tables(folder: Path) -> Path:
    made = folder / "tables"
    made.mkdir()
    written_tables(made)
    return made


@pytest.mark.parametrize("setting", TABLE_CHANGES)
def test_a_setting_of_a_table_decides_its_rows(tables: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.chdir(tables)
    before, after = before_and_after(tables, setting, hub=False)
    assert before != after


@pytest.mark.parametrize("setting", HUB_CHANGES)
def test_a_setting_of_a_data_set_decides_its_rows(tables: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.chdir(tables)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tables / "hf")
    before, after = before_and_after(tables, setting, hub=True)
    assert before != after


COLD = ("model.warm_start.enabled=false", "run.dir=nowhere")


def test_a_revision_is_one_of_the_hub_alone(tables: Path) -> None:
    of_the_hub = load_config([*COLD, "data=hub", "data.path=openai/gsm8k", "data.revision=main"])
    assert [source.revision for source in settled_sources(cast(HubDataConfig, of_the_hub.data))] == ["main"]
    with pytest.raises(ConfigError, match=r"data\.revision=main with data\.path=.*: a folder here has no revisions"):
        load_config([*COLD, "data=hub", f"data.path={tables / 'plain'}", "data.revision=main"])


def test_a_run_goes_into_its_folder(tmp_path: Path, without: Callable[[tuple[str, ...]], Seen]) -> None:
    seen = observe(configured(tmp_path / "of" / "mine", *QUICK))
    assert seen.files == {
        *("config.yaml", "overrides.json", "metrics.jsonl", "completions.jsonl", "controller_state.json", "run.log"),
        *("versions.json", "environment.json", "data.json"),
        *("checkpoints", "checkpoints/latest", "checkpoints/step_2"),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["of"]
    assert largest_weight_change(without(QUICK), seen) == 0
    same_training(without(QUICK), seen)

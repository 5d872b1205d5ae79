"""What a user gets wrong, from the command's words to the run: refused with a message that says what, where and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import completion_lines, configured, metric_lines, only_reward, overrides, train

from maxent_grpo.config.load import load_config
from maxent_grpo.errors import ConfigError, DataError, RewardError
from maxent_grpo.training.setup import run_from_config

QUICK = ("scoring=dr_grpo", "evaluation.enabled=false")


def trained_steps(run_dir: Path) -> int:
    return len(metric_lines(run_dir))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("refuses_green", r"raised LookupError\('no price for .*G.*'\)"),
        ("not_a_number_on_green", "returned nan: return a finite number, or None to leave the row out"),
        ("undefined_grade_on_green", "returned nan: return a finite number, or None to leave the row out"),
    ],
)
def test_a_broken_reward_function_stops_the_run_naming_term_row_and_completion(
    tmp_path: Path, name: str, complaint: str
) -> None:
    with pytest.raises(RewardError, match=complaint) as stop:
        train(tmp_path / "run", *QUICK, *only_reward(name))
    text = str(stop.value)
    assert f"reward term '{name}' on row coloring-" in text
    completion = text.split("completion '")[1].split("'")[0]
    assert "G" in completion
    assert trained_steps(tmp_path / "run") == 0
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert "stopped: reward term" in (tmp_path / "run" / "run.log").read_text()


def test_a_term_that_returns_none_leaves_the_row_out_and_is_counted(tmp_path: Path) -> None:
    train(
        tmp_path / "run",
        *QUICK,
        *only_reward("silent_on_green"),
        "~reward.terms.task",
        "~reward.terms.spread",
        "~reward.functions.spread",
    )
    for line in metric_lines(tmp_path / "run"):
        completions = [c for c in completion_lines(tmp_path / "run") if c["step"] == line["step"]]
        silent = [c for c in completions if "G" in c["completion"]]
        assert line["reward/abstained"] == len(silent) > 0
        assert all(c["utility"] is None and c["advantage"] == 0 and c["weight"] == 0 for c in silent)
        given = [c["utility"] for c in completions if c["utility"] is not None]
        assert line["reward/mean"] == pytest.approx(sum(given) / len(given))


def test_an_exception_can_count_as_abstaining(tmp_path: Path) -> None:
    tolerant = ("+reward.on_error.refuses_green=abstain",)
    train(tmp_path / "run", *QUICK, *only_reward("refuses_green"), *tolerant)
    for line in metric_lines(tmp_path / "run"):
        completions = [c for c in completion_lines(tmp_path / "run") if c["step"] == line["step"]]
        failed = [c for c in completions if "G" in c["completion"]]
        assert line["reward/abstained"] == len(failed) > 0
        assert all(c["rewards"]["refuses_green"] is None and c["utility"] is not None for c in failed)


@pytest.mark.parametrize("method", ["dr_grpo", "grpo", "maxent", "maxent_listwise"])
def test_steps_whose_every_row_abstains_train_nothing_and_end_normally(tmp_path: Path, method: str) -> None:
    alone = ("~reward.terms.task", "~reward.terms.spread", "~reward.functions.spread")
    result = train(tmp_path / "run", f"scoring={method}", "evaluation.enabled=false", *only_reward("silent"), *alone)
    assert result.global_step == 2
    for line in metric_lines(tmp_path / "run"):
        assert (line["optim/skipped"], line["loss/total"], line["reward/abstained"]) == (1.0, 0.0, 16.0)
        assert "reward/mean" not in line


def test_fewer_prompts_than_one_step_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"3 training prompts are fewer than .* optimization.prompts_per_step=4"):
        train(tmp_path / "run", *QUICK, "data.num_train=3")


def test_prompts_that_are_all_too_long_are_refused_with_the_length_they_need(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"all 12 prompts are longer than generation.max_prompt_len=3 tokens") as stop:
        train(tmp_path / "run", *QUICK, "generation.max_prompt_len=3")
    assert "data.long_prompts=truncate_left" in str(stop.value)


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    second = configured(run_dir, *QUICK, "seed=1")
    train(run_dir, *QUICK)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="already holds a run"):
        load_config(overrides(run_dir, *QUICK))
    with pytest.raises(ConfigError, match=f"run.dir={run_dir} already holds a run"):
        run_from_config(second)
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_a_metric_to_watch_that_evaluations_do_not_give_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"checkpoint.best_metric=eval/accuracy .*available: .*eval/pass@1, eval/pass@8"
    ):
        train(tmp_path / "run", "scoring=dr_grpo", "checkpoint.best_metric=eval/accuracy")


def test_a_run_that_failed_can_be_looked_at(tmp_path: Path) -> None:
    """The configuration and the log are there, and name what was run and why it stopped."""
    with pytest.raises(DataError):
        train(tmp_path / "run", *QUICK, "data.num_train=3")
    assert (tmp_path / "run" / "config.yaml").read_text().startswith("# options: model=tiny")
    assert "ERROR" in (tmp_path / "run" / "run.log").read_text()


def test_a_warm_up_that_outlasts_the_epochs_is_refused(tmp_path: Path) -> None:
    by_epochs = ("optimization.total_training_steps=0", "optimization.num_epochs=1", "optimization.warmup_steps=3")
    with pytest.raises(ConfigError, match=r"warmup_steps=3 is not below the 3 steps that .*num_epochs=1 makes of 12"):
        train(tmp_path / "run", *QUICK, *by_epochs)


@pytest.mark.parametrize(
    ("setting", "value", "metric"),
    [("scoring.kl_beta", 0.1, "controller/kl_beta"), ("scoring.weighting.beta", 0.3, "controller/beta")],
)
def test_coefficients_of_another_run_that_need_a_reference_are_refused_without_one(
    tmp_path: Path, setting: str, value: float, metric: str
) -> None:
    method = ("scoring=maxent", "evaluation.enabled=false")
    train(tmp_path / "first", *method, f"{setting}={value}")
    taken_over = f"controller.paths.resume_from={tmp_path / 'first' / 'controller_state.json'}"
    with pytest.raises(ConfigError, match="need reference log-probabilities, and this run keeps no reference"):
        train(tmp_path / "second", *method, taken_over)
    train(tmp_path / "third", *method, taken_over, "scoring.reference_logprobs_source=model")
    assert [line[metric] for line in metric_lines(tmp_path / "third")] == [value] * 2


def test_prompts_cut_to_the_limit_are_counted(tmp_path: Path) -> None:
    train(tmp_path / "run", *QUICK, "generation.max_prompt_len=6", "data.long_prompts=truncate_left")
    assert "truncated prompts  16" in (tmp_path / "run" / "run.log").read_text()

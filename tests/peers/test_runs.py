"""Complaints about whole runs: sampling on several processes, state, steps, records and misspelt settings."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from support.ranks import call_together
from support.runs import checkpoint_of, completion_lines, configured, metric_lines, state_of, train
from support.same_run import assert_same_run
from support.two_ranks import ROWS, sampled

from maxent_grpo.config.load import load_config
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.setup import run_from_config


def test_rows_that_ask_the_same_get_completions_of_their_own_wherever_they_are_sampled() -> None:
    """Complaint 48 (huggingface/trl PR #2824, #2776): the same seed on every rank gives the same completions twice.

    Four rows ask the same. The shares of two processes together are what one process samples, and no group occurs twice.
    """
    shares = [sampled(ROWS[rank::2]) for rank in range(2)]
    assert shares[0] | shares[1] == sampled(ROWS)
    groups = [*shares[0].values(), *shares[1].values()]
    assert all(groups.count(group) == 1 for group in groups)


@pytest.mark.slow
def test_two_processes_with_one_seed_sample_different_completions() -> None:
    """Complaint 48 with two processes that talk to each other."""
    (first, second), _ = call_together("support.two_ranks:sampled_by_all")
    assert (set(first), set(second)) == ({"a", "c"}, {"b", "d"})
    assert first | second == sampled(ROWS)
    groups = [*first.values(), *second.values()]
    assert all(groups.count(group) == 1 for group in groups)
    assert len({tuple(tokens) for tokens in chain(*groups)}) > 8


STATEFUL = (
    *("scoring=maxent", "controller=entropy", "scoring.kl_beta=0.1", "scoring.reference_sync.every_n_steps=1"),
    *("scoring.reference_sync.mixing=0.3", "evaluation.enabled=false", "optimization.total_training_steps=4"),
    *("checkpoint.every_n_steps=1", "checkpoint.keep_last=0"),
)


def test_the_controller_and_a_moving_reference_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    """Complaint 57: a controller's state or the moving reference is lost in a resume."""
    train(tmp_path / "straight", *STATEFUL)
    train(tmp_path / "resumed", *STATEFUL, resume_from=tmp_path / "straight" / "checkpoints" / "step_2")
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")
    states = [state_of(checkpoint_of(tmp_path / "straight", step)).states for step in (2, 4)]
    assert states[0]["controller"] != states[1]["controller"]


DAPO = (
    *("scoring=dapo", "evaluation.enabled=false", "optimization.lr_scheduler_type=linear"),
    "optimization.total_training_steps=3",
)


@pytest.mark.parametrize(("rounds", "prompts"), [(8, 4), (1, 1)])
def test_dynamic_sampling_changes_neither_steps_nor_schedule_nor_stops_at_its_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rounds: int, prompts: int
) -> None:
    """Complaint 65 (verl-project/verl#991, #5299, #876, DAPO#22): refills upset the count of steps, or end the run.

    Half of the rows have equal rewards. Every planned step is made and the learning rate follows the steps; with too few
    rounds a step is smaller, which a warning says.
    """
    settings = {
        "reward.functions": {"mixed_on_half": "support.graders:mixed_on_half"},
        "reward.terms": {"mixed_on_half": 1.0},
        "scoring.dynamic_sampling.max_refill": rounds,
        "scoring.dynamic_sampling.carry_over": False,
    }
    run_from_config(configured(tmp_path / "run", *DAPO, settings=settings))
    lines, completions = metric_lines(tmp_path / "run"), completion_lines(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert [line["optim/learning_rate"] for line in lines] == pytest.approx([0.01, 0.01 * 2 / 3, 0.01 / 3])
    assert all(line["sampling/prompts_drawn"] >= 4 for line in lines)
    groups = [sum(line["step"] == step for line in completions) // 4 for step in (1, 2, 3)]
    assert all(prompts <= count <= 4 for count in groups)
    assert (min(groups) < 4) == ("the update is made with these" in caplog.text)


def test_the_record_of_completions_has_every_row_of_every_step(tmp_path: Path) -> None:
    """Complaint 66 (huggingface/trl PR #3217, #2045, PR #6568, #2948): the table lacks rows under accumulation, is
    overwritten at every step, and needs a tracker."""
    train(tmp_path / "run", "scoring=grpo", "evaluation.enabled=false", "optimization.grad_accum_steps=2")
    lines = completion_lines(tmp_path / "run")
    assert [sum(line["step"] == step for line in lines) for step in (1, 2)] == [16, 16]
    assert all({"step", "prompt", "completion", "rewards", "advantage"} <= line.keys() for line in lines)
    assert all(line["rewards"].keys() == {"task", "spread"} for line in lines)


def test_a_misspelt_setting_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    """Complaint 72 (hydra-ecosystem/hydra#1457, #1912, #2888, huggingface/trl#1564): a misspelt key is taken in silence."""
    meant = r"scoring.cliping.clip_range: no such setting; did you mean scoring.clipping.clip_range\?"
    for mistake in ("scoring.cliping.clip_range=.2", "+scoring.cliping.clip_range=.2"):
        with pytest.raises(ConfigError, match=meant):
            load_config([mistake])
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nscoring:\n  cliping:\n    clip_range: 0.2\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError, match=meant):
        load_config(["experiment=mine"], config_dir=tmp_path)

"""A run that stops and continues is the run that never stopped: bit for bit, whatever the step it stops at."""

from __future__ import annotations

import logging
import math
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from support.identical import assert_identical
from support.runs import (
    checkpoint_of,
    completion_lines,
    configured,
    metric_lines,
    only_reward,
    state_of,
    train,
    weights_of,
)
from support.same_run import assert_same_run

from maxent_grpo.errors import CheckpointError, ConfigError
from maxent_grpo.training.setup import run_from_config

EVERY_STEP = ("checkpoint.every_n_steps=1", "checkpoint.keep_last=0")


@dataclass(frozen=True)
class Scenario:
    """A straight run of ``steps`` optimiser steps."""

    name: str
    steps: int
    extra: tuple[str, ...]

    @property
    def overrides(self) -> tuple[str, ...]:
        return (*EVERY_STEP, f"optimization.total_training_steps={self.steps}", *self.extra)


SECOND_EPOCH = Scenario(
    "maxent in its second epoch",
    5,
    (
        "scoring=maxent",
        "data.num_train=10",
        "scoring.weighting.beta=0.1",
        "optimization.weight_decay=0.1",
        "evaluation.every_n_steps=2",
        "checkpoint.best_metric=eval/mean_length",
    ),
)
INSIDE_ROLLOUT = Scenario(
    "grpo inside a rollout with a moving reference",
    7,
    (
        "scoring=grpo",
        "data.num_train=13",
        "optimization.prompts_per_step=5",
        "optimization.minibatches=2",
        "optimization.num_iterations=2",
        "optimization.grad_accum_steps=2",
        "optimization.lr_scheduler_type=linear",
        "scoring.kl_beta=0.1",
        "scoring.reference_sync.every_n_steps=2",
        "scoring.reference_sync.mixing=0.5",
    ),
)
STALE_REFERENCE = Scenario(
    "stale reference, sampler log-probs, entropy in the reward",
    4,
    (
        "scoring=maxent_listwise",
        "scoring.clipping.use_clip_objective=true",
        "optimization.num_iterations=3",
        "scoring.weighting.beta=0.2",
        "scoring.kl_beta=0.1",
        "scoring.reference_sync.every_n_steps=1",
        "scoring.allow_stale_reference_logprobs=true",
        "scoring.behavior_logprobs_source=sampler",
        "scoring.policy_entropy_bonus_coef=0.5",
        "model.dtype=float64",
    ),
)
HELD_ENTROPY = Scenario(
    "entropy controller with a moving target",
    4,
    (
        *("scoring=maxent", "controller=entropy", "controller.learning_rate=2", "controller.warmup_steps=1"),
        *("controller.schedule.kind=peak", "controller.schedule.peak_step=2", "controller.schedule.horizon=5"),
    ),
)
HELD_SIZE = Scenario(
    "effective size inside a rollout",
    4,
    (
        "scoring=maxent_listwise",
        "controller=effective_size",
        "controller.target_size=2",
        "optimization.num_iterations=3",
    ),
)
HELD_KL = Scenario(
    "proportional-integral KL controller of the listwise beta",
    4,
    (
        *("scoring=maxent", "scoring.weighting.beta=0.1", "controller=kl", "controller.target=listwise_beta"),
        *("controller.law=pi", "controller.target_kl=0.1"),
    ),
)
CARRIED = Scenario(
    "dapo with groups carried over",
    4,
    (
        *("scoring=dapo", *only_reward("mixed_on_half"), "data.num_train=11", "optimization.grad_accum_steps=2"),
        *("optimization.prompts_per_step=5", "optimization.lr_scheduler_type=linear", "evaluation.enabled=false"),
    ),
)
CARRIED_INSIDE_ROLLOUT = Scenario(
    "dapo with groups carried over inside a rollout",
    6,
    (
        *("scoring=dapo", *only_reward("mixed_on_half"), "data.num_train=11", "optimization.prompts_per_step=3"),
        *("optimization.minibatches=2", "optimization.num_iterations=2", "scoring.policy_entropy_bonus_coef=0.5"),
        *("scoring.kl_beta=0.1", "scoring.reference_sync.every_n_steps=2", "evaluation.enabled=false"),
    ),
)
AHEAD = Scenario(
    "rollouts sampled ahead",
    4,
    (
        *("scoring=grpo", "generation.async_steps=1", "scoring.behavior_logprobs_source=sampler", "data.num_train=10"),
        *(
            "scoring.mismatch.mode=token_truncate",
            "optimization.lr_scheduler_type=linear",
            "evaluation.every_n_steps=2",
        ),
    ),
)
AHEAD_INSIDE_ROLLOUT = Scenario(
    "dapo with rollouts sampled ahead inside a rollout",
    6,
    (
        *CARRIED_INSIDE_ROLLOUT.extra,
        *("generation.async_steps=1", "scoring.behavior_logprobs_source=sampler"),
        *("scoring.mismatch.mode=sequence_mask", "optimization.num_iterations=1", "optimization.prompts_per_step=4"),
    ),
)
CARRYING = (CARRIED, CARRIED_INSIDE_ROLLOUT)
CONTROLLED = (HELD_ENTROPY, HELD_SIZE, HELD_KL)
STOPS = [
    # in the short form the first stop, and every other of the scenarios whose stops are of several kinds
    pytest.param(
        scenario,
        step,
        id=f"{scenario.name}, from step {step}",
        marks=()
        if step == 1 or (step % 2 and scenario in (SECOND_EPOCH, INSIDE_ROLLOUT, *CARRYING, AHEAD_INSIDE_ROLLOUT))
        else pytest.mark.slow,
    )
    for scenario in (SECOND_EPOCH, INSIDE_ROLLOUT, STALE_REFERENCE, *CARRYING, AHEAD, AHEAD_INSIDE_ROLLOUT, *CONTROLLED)
    for step in range(1, scenario.steps)
]

Straight = Callable[[Scenario], Path]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """The directory of a scenario's straight run, made once."""

    @cache
    def run(scenario: Scenario) -> Path:
        run_dir = tmp_path_factory.mktemp("straight") / "run"
        train(run_dir, *scenario.overrides)
        return run_dir

    return run


@pytest.mark.parametrize(("scenario", "step"), STOPS)
def test_resuming_into_a_new_folder_is_the_straight_run(
    straight: Straight, tmp_path: Path, scenario: Scenario, step: int
) -> None:
    whole = straight(scenario)
    start = whole / "checkpoints" / f"step_{step}"
    result = train(tmp_path / "run", *scenario.overrides, resume_from=start)
    assert result.global_step == scenario.steps
    assert_same_run(whole, tmp_path / "run")


def test_the_scenarios_stop_where_they_claim(straight: Straight) -> None:
    epochs = [line["data/epoch"] for line in metric_lines(straight(SECOND_EPOCH)) if "data/epoch" in line]
    assert epochs == [0, 0, 0, 1, 1]
    inside = {
        step: state_of(checkpoint_of(straight(INSIDE_ROLLOUT), step)).states["rollout"]["experience"] is not None
        for step in range(1, INSIDE_ROLLOUT.steps + 1)
    }
    # a rollout of ten prompts serves four steps, the epoch's rest of three prompts only two
    assert inside == {1: True, 2: True, 3: True, 4: False, 5: True, 6: False, 7: True}
    references = [
        state_of(checkpoint_of(straight(INSIDE_ROLLOUT), step)).states["reference"]["lm_head.weight"]
        for step in (1, 2, 3)
    ]
    assert not references[0].equal(references[1])
    assert references[1].equal(references[2])


@pytest.mark.parametrize("scenario", CARRYING, ids=lambda scenario: scenario.name)
def test_the_scenarios_carry_groups_over_a_stop(straight: Straight, scenario: Scenario) -> None:
    states = [state_of(checkpoint_of(straight(scenario), step)).states for step in range(1, scenario.steps)]
    waiting = [len(state["carried_groups"]["groups"]) for state in states]
    assert max(waiting) > 0
    inside = [state["rollout"]["experience"] for state in states]
    if scenario is CARRIED:
        assert inside == [None] * len(states)
        return
    assert [experience is not None for experience in inside] == [True, True, True, False, True]
    assert inside[-1]["earlier_versions"] == [0] * waiting[0] != []
    assert any(line["generation/staleness"] > 1 for line in metric_lines(straight(scenario)))


@pytest.mark.parametrize("scenario", [AHEAD, AHEAD_INSIDE_ROLLOUT], ids=lambda scenario: scenario.name)
def test_the_scenarios_have_a_rollout_ahead_at_each_stop(straight: Straight, scenario: Scenario) -> None:
    states = [state_of(checkpoint_of(straight(scenario), step)).states for step in range(1, scenario.steps + 1)]
    ahead = [state["rollout_ahead"]["rollout"] for state in states]
    per_rollout = 2 if scenario is AHEAD_INSIDE_ROLLOUT else 1
    sampled_by = [per_rollout * ((step - 1) // per_rollout) for step in range(1, scenario.steps - per_rollout + 1)]
    assert [rollout["version"] for rollout in ahead if rollout is not None] == sampled_by
    assert ahead[len(sampled_by) :] == [None] * per_rollout
    if scenario is AHEAD_INSIDE_ROLLOUT:
        waiting = [state["carried_groups"]["groups"] for state in states]
        assert any(waiting)
        assert {group["logp"] for groups in waiting for group in groups} == {None}


@pytest.mark.parametrize("scenario", CONTROLLED, ids=lambda scenario: scenario.name)
def test_the_controllers_of_the_scenarios_move_their_coefficients(straight: Straight, scenario: Scenario) -> None:
    lines = metric_lines(straight(scenario))
    name = "controller/beta" if scenario is HELD_KL else "controller/tau"
    moved = [line[name] for line in lines if name in line]
    # a rollout of three passes is one problem, with one solution
    assert len(set(moved)) == {HELD_ENTROPY: 3, HELD_SIZE: 2, HELD_KL: 4}[scenario], moved
    state = state_of(checkpoint_of(straight(scenario))).states["controller"]
    assert state["num_updates"] == scenario.steps


@pytest.mark.parametrize("scenario", [SECOND_EPOCH, INSIDE_ROLLOUT], ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("name", ["checkpoints/step_3", ""], ids=["from a checkpoint", "from the run"])
def test_resuming_in_place_is_the_straight_run(
    straight: Straight, tmp_path: Path, scenario: Scenario, name: str
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(straight(scenario), run_dir)
    if not name:
        # as a crash in step 4 leaves it: the checkpoint of step 3 is the newest, the record may be ahead of it
        for step in range(4, scenario.steps + 1):
            shutil.rmtree(run_dir / "checkpoints" / f"step_{step}")
        (run_dir / "checkpoints" / "latest").write_text("step_3\n")
    train(run_dir, *scenario.overrides, resume_from=run_dir / name)
    assert_same_run(straight(scenario), run_dir)


def test_no_prompt_is_lost_or_repeated_by_stopping(straight: Straight, tmp_path: Path) -> None:
    stopped = (*SECOND_EPOCH.extra, *EVERY_STEP)
    train(tmp_path / "run", *stopped, "optimization.total_training_steps=2")
    for total in (3, 5):
        train(
            tmp_path / "run",
            *stopped,
            f"optimization.total_training_steps={total}",
            resume_from=tmp_path / "run",
        )
    whole, pieces = (
        Counter((line["step"], line["row_id"]) for line in completion_lines(run_dir))
        for run_dir in (straight(SECOND_EPOCH), tmp_path / "run")
    )
    assert whole == pieces
    first_epoch = Counter(row_id for step, row_id in pieces.elements() if step <= 3)
    assert len(first_epoch) == 10
    assert set(first_epoch.values()) == {4}


def test_a_finished_run_can_be_made_longer(straight: Straight, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(run_dir, *SECOND_EPOCH.overrides, "optimization.total_training_steps=3", "evaluation.every_n_steps=1")
    longer = (*SECOND_EPOCH.overrides, "evaluation.every_n_steps=1")
    assert train(run_dir, *longer, resume_from=run_dir).global_step == 5
    assert_identical(weights_of(checkpoint_of(straight(SECOND_EPOCH))), weights_of(checkpoint_of(run_dir)))
    assert [line["step"] for line in metric_lines(run_dir)] == [0, 1, 2, 3, 4, 5]


def test_a_run_does_not_end_before_the_step_it_goes_on_from(straight: Straight, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(straight(SECOND_EPOCH), run_dir)
    with pytest.raises(
        ConfigError, match=r"total_training_steps=2: .*step_5 is of step 5, .* use 5 to end there, more to go on"
    ):
        train(run_dir, *SECOND_EPOCH.overrides, "optimization.total_training_steps=2", resume_from=run_dir)
    assert_same_run(straight(SECOND_EPOCH), run_dir)


def test_resuming_a_finished_run_changes_nothing(straight: Straight, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(straight(SECOND_EPOCH), run_dir)
    result = train(run_dir, *SECOND_EPOCH.overrides, resume_from=run_dir)
    assert (result.global_step, result.metrics) == (5, {})
    assert_same_run(straight(SECOND_EPOCH), run_dir)


@pytest.mark.parametrize(
    "change",
    [
        "scoring.weighting.tau=0.2",
        "scoring.kl_beta=0.1",
        "optimization.learning_rate=0.02",
        "generation.temperature=0.9",
        "data.problem_seed=1",
        "seed=1",
        "reward.terms.spread=0.5",
    ],
)
def test_another_objective_or_other_data_are_refused(straight: Straight, tmp_path: Path, change: str) -> None:
    config = configured(tmp_path / "run", *SECOND_EPOCH.overrides, change, resume_from=straight(SECOND_EPOCH))
    with pytest.raises(CheckpointError, match="cannot resume: 1 setting of the objective or the data") as refusal:
        run_from_config(config)
    key, value = change.split("=")
    assert f"  - {key}: " in str(refusal.value)
    assert f"{value} now" in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_every_changed_setting_is_named(straight: Straight, tmp_path: Path) -> None:
    changed = ("scoring.weighting.tau=0.2", "data.num_train=11", "run.num_threads=1", "logging.completions_every=2")
    config = configured(tmp_path / "run", *SECOND_EPOCH.overrides, *changed, resume_from=straight(SECOND_EPOCH))
    with pytest.raises(CheckpointError) as refusal:
        run_from_config(config)
    named = [line.split(":")[0] for line in str(refusal.value).splitlines() if " in the checkpoint, " in line]
    assert named == ["  - data.num_train", "  - scoring.weighting.tau"]


def test_a_path_that_does_not_exist_is_refused_before_the_run(straight: Straight, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    with pytest.raises(ConfigError, match=f"checkpoint.resume_from={missing}: does not exist"):
        configured(tmp_path / "run", *SECOND_EPOCH.overrides, resume_from=missing)
    vanishing = tmp_path / "vanishing"
    shutil.copytree(straight(SECOND_EPOCH) / "checkpoints" / "step_1", vanishing / "step_1")
    config = configured(tmp_path / "run", *SECOND_EPOCH.overrides, resume_from=vanishing / "step_1")
    shutil.rmtree(vanishing)
    with pytest.raises(CheckpointError, match="step_1 does not exist"):
        run_from_config(config)


@pytest.mark.parametrize(
    "file", ["manifest.json", "model/model.safetensors", "state/optimizer.safetensors", "state/rollout.json"]
)
@pytest.mark.parametrize("harm", ["delete", "truncate"])
def test_a_half_written_checkpoint_is_refused(straight: Straight, tmp_path: Path, file: str, harm: str) -> None:
    source = tmp_path / "source" / "checkpoints" / "step_2"
    shutil.copytree(straight(SECOND_EPOCH) / "checkpoints" / "step_2", source)
    config = configured(tmp_path / "run", *SECOND_EPOCH.overrides, resume_from=source)
    if harm == "delete":
        (source / file).unlink()
    else:
        content = (source / file).read_bytes()
        (source / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=file):
        run_from_config(config)
    assert not (tmp_path / "run").exists()


def test_a_damaged_latest_checkpoint_gives_way_to_the_one_before(
    straight: Straight, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(straight(SECOND_EPOCH), run_dir)
    (run_dir / "checkpoints" / "step_5" / "state" / "optimizer.json").unlink()
    with caplog.at_level(logging.WARNING, logger="maxent_grpo"):
        train(run_dir, *SECOND_EPOCH.overrides, resume_from=run_dir)
    assert any("step_4, the newest complete checkpoint" in record.message for record in caplog.records)
    assert_same_run(straight(SECOND_EPOCH), run_dir)


def test_training_stops_when_evaluations_get_no_better_and_keeps_the_best(tmp_path: Path) -> None:
    # with a learning rate this small every evaluation draws the same samples, so that the second is no better
    result = train(
        tmp_path / "run",
        "optimization.total_training_steps=6",
        "optimization.learning_rate=1e-12",
        "evaluation.every_n_steps=1",
        "checkpoint.best_metric=eval/pass@1",
        "checkpoint.early_stop_patience=1",
        "checkpoint.keep_last=1",
    )
    assert result.global_step == 2
    assert list(result.evaluations) == [0, 1, 2]
    folders = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert folders == ["best", "latest", "step_1", "step_2"]
    assert checkpoint_of(tmp_path / "run" / "checkpoints" / "best").name == "step_1"
    assert checkpoint_of(tmp_path / "run" / "checkpoints" / "latest").name == "step_2"
    assert metric_lines(tmp_path / "run")[-1]["step"] == 2


def test_patience_counts_on_after_a_resume(tmp_path: Path) -> None:
    watched = (
        "optimization.learning_rate=1e-12",
        "evaluation.every_n_steps=1",
        "checkpoint.best_metric=eval/pass@1",
        "checkpoint.early_stop_patience=3",
    )
    train(tmp_path / "run", *watched, "optimization.total_training_steps=2")
    resumed = train(
        tmp_path / "run",
        *watched,
        "optimization.total_training_steps=9",
        resume_from=tmp_path / "run",
    )
    assert resumed.global_step == 4
    assert list(resumed.evaluations) == [3, 4]
    assert checkpoint_of(tmp_path / "run" / "checkpoints" / "best").name == "step_1"


def test_a_run_that_stopped_early_goes_on_when_its_patience_is_lifted(tmp_path: Path) -> None:
    watched = (
        "optimization.learning_rate=1e-12",
        "optimization.total_training_steps=4",
        "evaluation.every_n_steps=1",
        "checkpoint.best_metric=eval/pass@1",
    )
    impatient = (*watched, "checkpoint.early_stop_patience=1")
    assert train(tmp_path / "run", *impatient).global_step == 2
    assert train(tmp_path / "run", *impatient, resume_from=tmp_path / "run").global_step == 2
    assert train(tmp_path / "run", *watched, resume_from=tmp_path / "run").global_step == 4


def test_a_longer_run_follows_the_longer_curve_from_its_first_step(tmp_path: Path) -> None:
    cosine = ("scoring=dr_grpo", "evaluation.enabled=false", "optimization.lr_scheduler_type=cosine")
    train(tmp_path / "run", *cosine, "optimization.total_training_steps=2")
    train(tmp_path / "run", *cosine, "optimization.total_training_steps=4", resume_from=tmp_path / "run")
    rates = [line["optim/learning_rate"] for line in metric_lines(tmp_path / "run")]
    assert rates == pytest.approx([0.01 * (1 + math.cos(math.pi * share)) / 2 for share in (0, 1 / 2, 2 / 4, 3 / 4)])

"""Dynamic sampling in runs: what is drawn, kept, carried over and resumed, and that nothing else of a run changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from support.graders import flat_row
from support.identical import assert_identical
from support.runs import (
    checkpoint_of,
    completion_lines,
    configured,
    inside_run,
    metric_lines,
    state_of,
    weights_of,
)

from maxent_grpo.config.resolve import has_unit_ratio
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import GenerationError
from maxent_grpo.tasks.sampler import EpochSampler
from maxent_grpo.training import samplers
from maxent_grpo.training.carried_groups import CarriedGroups
from maxent_grpo.training.checkpoint.codec import load_tree, save_tree
from maxent_grpo.training.credit import Grading
from maxent_grpo.training.dynamic_sampling import gather_informative
from maxent_grpo.training.experience import Experience, sample_prompts, trainer_state
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.loop import run_training
from maxent_grpo.training.loop_parts import LoopParts
from maxent_grpo.training.replay import first_difference, perform_replay, plan_replay
from maxent_grpo.training.row_stream import RowStream
from maxent_grpo.training.sampled_groups import Groups, groups_from_tree, groups_to_tree, join_groups, select_groups
from maxent_grpo.training.sampled_rollout import SampledRollout
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.types.choices import BehaviorSource, MismatchMode
from maxent_grpo.training.types.runtime import StepResources, TrainingLoopContext

NUM_ROWS, PROMPTS, GROUP, SEED = 12, 4, 4, 0
"""Training rows, prompts of a step, completions of a prompt and seed of the small runs."""

DAPO = (
    *("scoring=dapo", "evaluation.enabled=false", "optimization.lr_scheduler_type=linear", "model.dtype=float64"),
    *("optimization.total_training_steps=6", "checkpoint.keep_last=0"),
)
ENABLED, MAX_REFILL, CARRY_OVER = (
    f"scoring.dynamic_sampling.{name}" for name in ("enabled", "max_refill", "carry_over")
)
STEPS = "optimization.total_training_steps"
PROMPTS_PER_STEP, MINIBATCHES, ITERATIONS, PARTS = (
    f"optimization.{name}" for name in ("prompts_per_step", "minibatches", "num_iterations", "grad_accum_steps")
)


def reward(*names: str) -> dict[str, Any]:
    """Settings that make functions of ``support.graders`` the only terms."""
    functions = {name: f"support.graders:{name}" for name in names}
    return {"reward.functions": functions, "reward.terms": dict.fromkeys(names, 1.0)}


def config_of(run_dir: Path, grader: str, settings: Mapping[str, Any] | None = None) -> RootConfig:
    """A small dapo run of six steps, composed once."""
    return configured(run_dir, *DAPO, settings={**reward(grader), **(settings or {})})


def run(run_dir: Path, grader: str, settings: Mapping[str, Any] | None = None) -> list[dict[str, float]]:
    """The metrics of such a run."""
    run_from_config(config_of(run_dir, grader, settings))
    return metric_lines(run_dir)


def drawn(lines: list[dict[str, float]], name: str) -> list[int]:
    """A count of the draws of every rollout."""
    return [int(line[f"sampling/{name}"]) for line in lines if f"sampling/{name}" in line]


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose rewards are equal on half of its rows, with surplus groups carried over."""
    run_dir = tmp_path_factory.mktemp("half") / "run"
    run(run_dir, "mixed_on_half", {"checkpoint.every_n_steps": 1})
    return run_dir


def test_every_planned_step_is_taken_with_groups_that_differ(half: Path) -> None:
    lines, completions = metric_lines(half), completion_lines(half)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["optim/learning_rate"] for line in lines] == pytest.approx([0.01 * (1 - n / 6) for n in range(6)])
    assert [line["optim/skipped"] for line in lines] == [0] * 6
    assert [line["reward/equal_groups"] for line in lines] == [0] * 6
    assert not any(flat_row(line["row_id"]) for line in completions)
    for step in range(1, 7):
        assert sum(line["step"] == step for line in completions) == PROMPTS * GROUP


def test_prompts_drawn_are_counted_and_no_kept_group_is_lost_or_trained_twice(half: Path, tmp_path: Path) -> None:
    lines = metric_lines(half)
    prompts, carried, surplus = (drawn(lines, name) for name in ("prompts_drawn", "carried_groups", "surplus_groups"))
    assert len(prompts) == 6
    assert max(surplus) > 0
    assert carried == [0, *surplus[:-1]]
    position = state_of(checkpoint_of(half)).states["data"]
    assert position["epoch"] * NUM_ROWS + position["offset"] == sum(prompts)
    kept = [round(count * line["sampling/keep_rate"]) for count, line in zip(prompts, lines, strict=True)]
    assert [PROMPTS + more - before for before, more in zip(carried, surplus, strict=True)] == kept
    rows = inside_run(
        config_of(tmp_path / "other", "mixed"), lambda ctx, *_: list(cast(Any, ctx.runtime.train_loader.dataset))
    )
    order = [rows[n]["row_id"] for epoch in range(9) for n in EpochSampler(NUM_ROWS, seed=SEED).order(epoch)]
    trained = [line["row_id"] for line in completion_lines(half)[::GROUP]]
    assert trained == [name for name in order[: sum(prompts)] if not flat_row(name)][: 6 * PROMPTS]


def test_reward_figures_are_those_of_kept_groups_but_for_the_one_of_all_drawn(half: Path) -> None:
    for line in metric_lines(half):
        assert line["reward/mean"] == 0.5
        rate = line["sampling/keep_rate"]
        assert line["reward/drawn_mean"] == pytest.approx(0.5 * rate + 1.0 * (1 - rate))


def test_without_carrying_over_surplus_is_dropped_and_counted_and_nothing_is_stale(half: Path, tmp_path: Path) -> None:
    lines, carrying = run(tmp_path / "run", "mixed_on_half", {CARRY_OVER: False}), metric_lines(half)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert max(drawn(lines, "surplus_groups")) > 0
    assert drawn(lines, "carried_groups") == [0] * 6
    assert {line["generation/staleness"] for line in lines} == {0}
    assert {(line["policy/ratio_mean"], line["policy/ratio_max"]) for line in lines} == {(1.0, 1.0)}
    assert "carried_groups" in state_of(checkpoint_of(tmp_path / "run")).states
    assert state_of(checkpoint_of(tmp_path / "run")).states["carried_groups"] == {"groups": []}
    assert not any(flat_row(line["row_id"]) for line in completion_lines(tmp_path / "run"))
    assert sum(drawn(lines, "prompts_drawn")) > sum(drawn(carrying, "prompts_drawn")), "what was dropped is drawn again"


def test_the_ratio_is_not_said_to_be_1_where_groups_are_carried_over(tmp_path: Path) -> None:
    assert not has_unit_ratio(config_of(tmp_path, "mixed"))
    assert has_unit_ratio(config_of(tmp_path, "mixed", {CARRY_OVER: False}))
    assert has_unit_ratio(config_of(tmp_path, "mixed", {ENABLED: False}))


def test_a_carried_group_is_as_old_as_the_weights_that_sampled_it(half: Path) -> None:
    lines = metric_lines(half)
    for line in lines:
        versions = [row["policy_version"] for row in completion_lines(half) if row["step"] == line["step"]]
        fresh = line["step"] - 1
        assert versions.count(fresh - 1) == GROUP * line["sampling/carried_groups"]
        assert versions.count(fresh) == GROUP * (PROMPTS - line["sampling/carried_groups"])
        assert line["generation/staleness"] == fresh - min(versions) == (line["sampling/carried_groups"] > 0)
    assert {line["generation/staleness"] for line in lines} == {0, 1}


SAMPLER = {"scoring.behavior_logprobs_source": BehaviorSource.sampler}


@pytest.mark.parametrize(
    "settings",
    [{ITERATIONS: 2}, {**SAMPLER, ITERATIONS: 2}, {**SAMPLER, "scoring.mismatch.mode": MismatchMode.token_truncate}],
    ids=["several updates", "ratio to the sampler", "mismatch corrected"],
)
def test_the_ratio_of_a_carried_group_is_to_the_weights_that_sampled_it(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """The local sampler reports pi_old in double precision: the trainer's must be the same, whatever was updated since."""
    lines = run(tmp_path / "run", "mixed_on_half", {**settings, STEPS: 4})
    assert max(line["generation/logprob_gap"] for line in lines if "generation/logprob_gap" in line) < 1e-12
    first = [line for line in lines if "sampling/carried_groups" in line]
    for line in first:
        moved = abs(line["policy/ratio_max"] - 1) > 1e-3
        assert moved == (line["sampling/carried_groups"] > 0), line["step"]
    assert any(line["sampling/carried_groups"] > 0 for line in first)


def test_only_the_carried_groups_bring_their_log_probs_when_a_rollout_serves_one_update(tmp_path: Path) -> None:
    """Fresh rows keep an exact ratio of 1, without another pass over them."""

    def steps(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts) -> list[Experience]:
        seen: list[Experience] = []
        put = parts.buffer.put
        with patch.object(parts.buffer, "put", lambda experience: (seen.append(experience), put(experience))):
            run_training(ctx, resources, parts)
        return seen

    for experience in inside_run(config_of(tmp_path / "run", "mixed_on_half"), steps):
        num_carried = GROUP * len(experience.earlier_versions)
        if num_carried == 0:
            assert experience.old_logp is None
            assert experience.old_known is None
            continue
        assert experience.old_logp is not None
        assert experience.old_known is not None
        assert experience.old_known.tolist() == [True] * num_carried + [False] * (PROMPTS * GROUP - num_carried)
        known = experience.mask & experience.old_known.unsqueeze(-1)
        difference = (experience.old_logp - experience.sampled_logp)[known].abs().max()
        assert 0 <= float(difference) < 1e-12


@pytest.mark.parametrize(
    "settings",
    [{PARTS: 2}, {PROMPTS_PER_STEP: 3, MINIBATCHES: 2, ITERATIONS: 2, "scoring.policy_entropy_bonus_coef": 0.5}],
    ids=["one update", "several updates"],
)
def test_where_every_group_differs_the_run_is_the_plain_run(tmp_path: Path, settings: dict[str, Any]) -> None:
    lines = run(tmp_path / "dynamic", "mixed", {**settings, STEPS: 4})
    run(tmp_path / "plain", "mixed", {**settings, STEPS: 4, ENABLED: False})
    left, right = (checkpoint_of(tmp_path / name) for name in ("dynamic", "plain"))
    assert_identical(weights_of(left), weights_of(right), "weights")
    ours, theirs = state_of(left).states, state_of(right).states
    assert ours.keys() - theirs.keys() == {"carried_groups"}
    for name in theirs:
        assert_identical(ours[name], theirs[name], name)
    own = {name for line in lines for name in line if name.startswith("sampling/")} | {"reward/drawn_mean"}
    assert [{name: line[name] for name in line.keys() - own} for line in lines] == metric_lines(tmp_path / "plain")
    assert completion_lines(tmp_path / "dynamic") == completion_lines(tmp_path / "plain")
    assert {line["sampling/keep_rate"] for line in lines if "sampling/keep_rate" in line} == {1.0}


def test_a_rollout_serves_the_planned_steps_in_minibatches_of_kept_groups(tmp_path: Path) -> None:
    lines = run(tmp_path / "run", "mixed_on_half", {MINIBATCHES: 2, ITERATIONS: 2, PARTS: 2})
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert ["sampling/prompts_drawn" in line for line in lines] == [True, False, False, False, True, False]
    groups = {step: [] for step in range(1, 7)}
    for row in completion_lines(tmp_path / "run")[::GROUP]:
        groups[row["step"]].append(row["row_id"])
    assert {len(names) for names in groups.values()} == {PROMPTS}
    assert groups[1] == groups[3]
    assert groups[2] == groups[4]


def test_after_the_last_refill_the_step_is_made_with_what_there_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="maxent_grpo"):
        lines = run(tmp_path / "run", "mixed_on_half", {MAX_REFILL: 0})
    completions = completion_lines(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    missing = drawn(lines, "missing_groups")
    assert max(missing) > 0
    assert drawn(lines, "refill_rounds") == [0] * 6
    assert drawn(lines, "prompts_drawn") == [PROMPTS] * 6
    trained = [sum(row["step"] == line["step"] for row in completions) // GROUP for line in lines]
    assert trained == [PROMPTS - gap for gap in missing]
    warnings = [record.getMessage() for record in caplog.records if "dynamic sampling" in record.getMessage()]
    assert len(warnings) == sum(gap > 0 for gap in missing)
    short = next(gap for gap in missing if gap)
    assert warnings[0] == (
        f"dynamic sampling: {PROMPTS - short} of 4 groups carry a signal after 0 refill rounds and 4 prompts, of which "
        f"{25 * (PROMPTS - short)} % were kept; the update is made with these"
    )


def test_a_short_step_divides_by_the_groups_it_has(tmp_path: Path) -> None:
    """Its update is that of a run whose steps have so many prompts, on these prompts."""
    lines = run(tmp_path / "short", "mixed_on_half", {STEPS: 1, MAX_REFILL: 0})
    kept = PROMPTS - drawn(lines, "missing_groups")[0]
    assert 0 < kept < PROMPTS
    run(tmp_path / "full", "mixed_on_half", {STEPS: 1, PROMPTS_PER_STEP: kept})
    short, full = (completion_lines(tmp_path / name) for name in ("short", "full"))
    assert [row["row_id"] for row in short] == [row["row_id"] for row in full]
    left, right = (weights_of(checkpoint_of(tmp_path / name)) for name in ("short", "full"))
    for name, values in left.items():
        assert torch.allclose(values, right[name], rtol=0, atol=1e-9), name


def test_a_run_in_which_no_group_differs_says_so(tmp_path: Path) -> None:
    with pytest.raises(GenerationError) as refusal:
        run(tmp_path / "run", "half", {MAX_REFILL: 2})
    assert str(refusal.value) == (
        "dynamic sampling: 0 of 12 prompts, drawn in 3 rounds (scoring.dynamic_sampling.max_refill=2), gave a group whose "
        "utilities differ; their mean utility was 0.5. The prompts are all too hard or all too easy for the model: choose "
        "others, raise generation.num_generations or max_refill, or train on every group with "
        "scoring.dynamic_sampling.enabled=false"
    )


def test_a_run_in_which_no_completion_has_a_reward_says_so(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match=r"utilities differ; none had a completion with a reward\. The prompts"):
        run(tmp_path / "run", "silent", {MAX_REFILL: 0})


def test_a_prompt_that_is_never_answered_is_one_that_is_not_kept(tmp_path: Path) -> None:
    class Deaf(LocalGenerator):
        """Does not answer the prompts that would be kept but for one in two of them."""

        def __call__(self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None) -> Any:
            texts, records = super().__call__(prompts, num_samples, per_prompt_counts)
            deaf = [sum(map(ord, getattr(prompt, "row_id", ""))) % 4 == 0 for prompt in prompts]
            return [
                [[] if silent else group for group, silent in zip(groups, deaf, strict=True)]
                for groups in (texts, records)
            ]

    with patch.object(samplers, "LocalGenerator", Deaf):
        lines = run(tmp_path / "run", "mixed", {STEPS: 3})
    assert sum(line["generation/dropped_prompts"] for line in lines) > 0
    for line in lines:
        kept = round(line["sampling/prompts_drawn"] * line["sampling/keep_rate"])
        assert kept == line["sampling/prompts_drawn"] - line["generation/dropped_prompts"]
        assert line["sampling/missing_groups"] == 0


def test_groups_are_chosen_joined_and_stored_exactly(tmp_path: Path) -> None:
    def sampled(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts) -> Groups:
        grading = Grading(parts.rows, ctx.reward, trainer_state(ctx, 0, 0))
        batch, _ = sample_prompts(ctx, resources, next(iter(ctx.runtime.train_loader)), grading)
        return batch, grading.finish(batch)

    whole = inside_run(configured(tmp_path / "run", *DAPO, settings=reward("silent_on_green", "spread")), sampled)
    assert whole[1].abstentions > 0
    singles = [select_groups(whole, [n]) for n in range(PROMPTS)]
    assert_same_groups(join_groups(singles), whole)
    assert_same_groups(select_groups(whole, [3, 1]), join_groups([singles[3], singles[1]]))
    (tmp_path / "tree").mkdir()
    save_tree(groups_to_tree(whole), tmp_path / "tree", "groups")
    assert_same_groups(groups_from_tree(load_tree(tmp_path / "tree", "groups")), whole)


def test_numbers_that_functions_log_are_those_of_all_draws_once(tmp_path: Path) -> None:
    def rollouts(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts) -> list[SampledRollout]:
        order = cast(EpochSampler, ctx.runtime.train_sampler)
        stream = RowStream(ctx.runtime.train_loader, order, parts.position, PROMPTS)
        assert parts.carried is not None
        return [
            gather_informative(ctx, resources, stream, parts.carried, parts.rows, parts.clock, 0, scores_surplus=False)
            for _ in range(2)
        ]

    logging = reward("mixed_on_half", "logs_length") | {"reward.terms": {"mixed_on_half": 1.0, "logs_length": 0.0}}
    for rollout in inside_run(configured(tmp_path / "run", *DAPO, settings=logging), rollouts):
        assert rollout.drawing is not None
        assert rollout.drawing.num_informative > 1
        assert len(rollout.groups[1].logged["longest"]) == rollout.drawing.refill_rounds + 1


def assert_same_groups(left: Groups, right: Groups) -> None:
    assert_identical(groups_to_tree(left), groups_to_tree(right), "groups")
    assert left[0].grouped_completion_info == right[0].grouped_completion_info
    assert left[1].metadata == right[1].metadata
    assert left[1].pairs == right[1].pairs


def test_carried_groups_come_back_as_they_were(half: Path) -> None:
    found = [state_of(folder).states["carried_groups"] for folder in sorted((half / "checkpoints").glob("step_*"))]
    state = next(state for state in found if state["groups"])
    carried = CarriedGroups()
    carried.load_state_dict(state)
    assert_identical(carried.state_dict(), state, "carried_groups")
    group = carried.groups[0]
    assert group.logp is not None
    records = group.sampled[1].records
    assert {record.policy_version for record in records} == {group.version}
    for record, logp in zip(records, group.logp, strict=True):
        assert logp[: len(record.token_ids)].tolist() == pytest.approx(record.behaviour_logp, abs=1e-12)
    assert len(carried.take()) == len(state["groups"])
    assert carried.groups == []


def test_a_step_with_a_carried_group_can_be_replayed(half: Path, tmp_path: Path) -> None:
    step = next(
        int(line["step"]) for line in metric_lines(half) if line["sampling/carried_groups"] > 0 and line["step"] > 2
    )
    plan = plan_replay(half, step)
    assert plan.first_step == step - 2, "from the weights that sampled the oldest group"
    assert first_difference(plan, perform_replay(plan, tmp_path / "replay")) is None

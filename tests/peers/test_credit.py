"""Complaints about advantages and rewards, each with the number that is right and, where it helps, the one that was wrong."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from support.laboratory import Build
from support.numbers import assert_equals
from support.peers import alone, credit_of, graded_rewards, record
from support.runs import configured, metric_lines, only_reward, train
from support.steps import plain_facts

from maxent_grpo.errors import ConfigError
from maxent_grpo.objective.advantages import centred_advantages
from maxent_grpo.rewards.registry import RewardTerm
from maxent_grpo.tasks.build import build_task
from maxent_grpo.training.credit import grade_rollout
from maxent_grpo.training.credit_rules import ADVANTAGES, CreditRule
from maxent_grpo.training.reward_terms import build_rewards
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.types.choices import AdvantageKind
from maxent_grpo.training.types.rewards import GenerationBatch, RewardComputation
from maxent_grpo.training.types.runtime import RewardSpec

RULES: dict[AdvantageKind, CreditRule] = {kind: rule for kind, rule in ADVANTAGES.items() if rule is not None}


def test_a_reward_that_abstains_leaves_the_baseline() -> None:
    """Complaint 12: a reward of None counts as 0 in the mean of its group. [1/3, -2/3, 0, 1/3], not [.5, -.5, -.5, .5]."""
    graded = graded_rewards({"a": [1.0, 0.0, None, 1.0]})
    assert credit_of(graded).advantage.samples == pytest.approx([1 / 3, -2 / 3, 0.0, 1 / 3], abs=1e-12)
    assert graded.abstentions == 1
    counted_as_zero = credit_of(graded_rewards({"a": [1.0, 0.0, 0.0, 1.0]}))
    assert counted_as_zero.advantage.samples == pytest.approx([0.5, -0.5, -0.5, 0.5], abs=1e-12)


def test_the_logged_reward_is_the_weighted_one(tmp_path: Path) -> None:
    """Complaint 14: the reward in the log is a plain sum of the terms. Rewards 1 and 0 weighted .7 and .3: 0.7, not 1."""
    weighted = (
        *("reward.terms.task=0", "reward.terms.spread=0", "evaluation.enabled=false", "scoring=dr_grpo"),
        *("+reward.terms.one=0.7", "+reward.functions.one=support.peers:one"),
        *("+reward.terms.zero=0.3", "+reward.functions.zero=support.peers:zero"),
    )
    train(tmp_path / "run", *weighted, "optimization.total_training_steps=1")
    [line] = metric_lines(tmp_path / "run")
    assert line["reward/mean"] == pytest.approx(0.7, abs=1e-12)
    assert (line["reward/term/one"], line["reward/term/zero"]) == (1.0, 0.0)


def test_batch_scaling_has_one_deviation_for_all_groups() -> None:
    """Complaint 15: scaling by the batch is done per group. Groups [0,1], [0,3]: +-.3536 and +-1.0607; per group +-.7071."""
    graded = graded_rewards({"a": [0.0, 1.0], "b": [0.0, 3.0]})
    batch = credit_of(graded, advantage=AdvantageKind.batch_std).advantage.samples
    assert batch == pytest.approx([-0.3536, 0.3536, -1.0607, 1.0607], abs=2e-4)
    group = credit_of(graded, advantage=AdvantageKind.group_std).advantage.samples
    assert group == pytest.approx([-0.7071, 0.7071, -0.7071, 0.7071], abs=2e-4)


@pytest.mark.parametrize("reward", [0.95, 0.1, 1 / 3, 0.7])
def test_equal_rewards_have_advantage_exactly_zero(reward: float) -> None:
    """Complaint 16: eight equal float32 rewards get advantages of up to 2075 by rounding over a tiny epsilon. Exactly 0."""
    rewards = torch.full((1, 8), reward, dtype=torch.float32)
    everyone = torch.ones_like(rewards, dtype=torch.bool)
    for kind, rule in RULES.items():
        assert torch.equal(rule(rewards, plain_facts(everyone)), torch.zeros_like(rewards)), kind
    assert credit_of(graded_rewards({"a": [reward] * 8}), "grpo").advantage.samples == [0.0] * 8


def test_rounding_alone_would_give_equal_rewards_an_advantage() -> None:
    """Complaint 16: the formula itself on eight float32 rewards of 0.95 gives 0.92 with an epsilon of 1e-9 and 6e-4 with 1e-4."""
    rewards = torch.full((8,), 0.95, dtype=torch.float32)
    centred = rewards - rewards.sum() / 8
    for epsilon, least in ((1e-9, 0.5), (1e-4, 3e-4)):
        assert (
            float((centred / (rewards.sub(rewards.sum() / 8).square().sum().div(7).sqrt() + epsilon)).abs().max())
            > least
        )


def by_text(credit: RewardComputation) -> dict[str, float]:
    return dict(zip(credit.pairs.completions, credit.advantage.samples, strict=True))


def test_groups_are_those_of_the_prompts_whatever_the_order_of_rows() -> None:
    """Complaint 17: prompts tiled as p1 p2 p1 p2 mix two groups. Advantages go with their rows, however these are ordered."""
    rewards: dict[str, list[float | None]] = {
        "a": [1.0, 0.0, 0.0, 0.0],
        "b": [5.0, 5.0, 7.0, 9.0],
        "c": [0.0, 1.0, 1.0, 0.5],
    }
    straight = by_text(credit_of(graded_rewards(rewards)))
    order = random.Random(3)
    values = {f"{name}#{place}": value for name, group in rewards.items() for place, value in enumerate(group)}
    for _ in range(5):
        names = order.sample(list(rewards), len(rewards))
        texts = [order.sample([text for text in values if text.startswith(name)], 4) for name in names]
        batch = GenerationBatch(names, [""] * 3, texts, [[record(name) for _ in range(4)] for name in names])
        term = RewardTerm("given", lambda completions: [values[text] for text in completions])
        graded = grade_rollout(batch, {name: {"row_id": name} for name in names}, RewardSpec([term], [1.0]))
        assert by_text(credit_of(graded)) == pytest.approx(straight, abs=1e-12)
    tiled = centred_advantages(torch.tensor([[1.0, 5.0, 0.0, 5.0]]), torch.ones(1, 4, dtype=torch.bool))
    assert float(tiled[0, 0]) == pytest.approx(-1.75)
    assert straight["a#0"] == 0.75


def test_a_group_of_one_has_advantage_zero_and_is_seen(tmp_path: Path) -> None:
    """Complaint 18: a group of one gets its raw reward as advantage. 0, not 1; refused as a setting, counted where it happens."""
    lonely = graded_rewards({"a": [1.0, None, None, None], "b": [1.0, 0.0, 0.0, 0.0]})
    for kind in RULES:
        credit = credit_of(lonely, advantage=kind)
        if kind is not AdvantageKind.whitened:  # whose baseline is the mean over the batch's tokens
            assert credit.advantage.grouped[0] == [0.0] * 4, kind
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, "scoring=grpo", settings={"generation.num_generations": 1})
    assert caught.value.problems == [
        "generation.num_generations=1 gives every completion the advantage 0: use at least 2"
    ]
    config = configured(tmp_path / "run", "scoring=grpo", "evaluation.enabled=false", settings=alone("only_first"))
    run_from_config(config)
    assert [line["reward/equal_groups"] for line in metric_lines(tmp_path / "run")] == [1.0, 1.0]


def test_advantages_are_normalised_once(laboratory: Build) -> None:
    """Complaint 20: the environment normalises and the trainer does again. Mean 0 and deviation 1 in credit and in the step."""
    lab = laboratory("scoring=grpo")
    experience = lab.rollout()
    assigned = torch.tensor(experience.rewards.advantage.grouped, dtype=torch.float64)
    used = lab.step(experience).report.targets.advantages
    assert torch.equal(used, assigned[: len(used)])
    informative = used.abs().sum(dim=-1) > 0
    assert informative.any()
    assert_equals(used[informative].mean(dim=-1), torch.zeros(int(informative.sum())), tolerance=1e-9)
    assert_equals(used[informative].std(dim=-1), torch.ones(int(informative.sum())), tolerance=2e-3)


@pytest.mark.parametrize("kind", ["group_std", "batch_std", "whitened"])
def test_rewards_and_advantages_are_not_both_normalised(tmp_path: Path, kind: str) -> None:
    """Complaint 20: a reward in units of its deviation is divided by a deviation again. Refused, with what to say instead."""
    with pytest.raises(ConfigError, match=f"scoring.advantage={kind} would divide by a deviation twice: use scoring"):
        configured(tmp_path, "scoring=dr_grpo", f"scoring.advantage={kind}", "reward.normalize=term")


def test_groups_without_spread_can_leave_the_loss_and_its_denominator(laboratory: Build) -> None:
    """Complaint 21: groups of equal rewards still pull by the KL term and sit in the count. With equal_groups=drop, neither."""
    regularised = ("scoring=dr_grpo", "scoring.kl_beta=0.1", *only_reward("starts_with_red"))
    lab = laboratory(*regularised, "scoring.equal_groups=drop")
    experience = lab.rollout()
    spread = [max(group) - min(group) for group in torch.tensor(experience.graded.utilities).view(-1, 4).tolist()]
    assert experience.counted.tolist() == [value > 0 for value in spread]
    assert 0 < int(experience.counted.sum()) < len(spread)
    assert not experience.mask.view(len(spread), 4, -1)[~experience.counted].any()
    dropped = lab.step(experience)
    kept_rows = 4 * float(experience.counted.sum())
    assert (dropped.report.counts.sequences, dropped.report.counts.groups) == (kept_rows, kept_rows / 4)
    assert laboratory(*regularised).step(laboratory(*regularised).rollout()).report.counts.sequences == 4 * len(spread)


@pytest.mark.parametrize(("choice", "pulls"), [("keep", True), ("drop", False)])
def test_a_step_of_groups_without_spread_pulls_only_where_they_are_kept(
    laboratory: Build, choice: str, pulls: bool
) -> None:
    """Complaint 21: with every group flat and a KL term, the gradient is that of the KL term, or exactly 0 with `drop`."""
    lab = laboratory("scoring=dr_grpo", "scoring.kl_beta=0.1", *only_reward("half"), f"scoring.equal_groups={choice}")
    outcome = lab.step(lab.rollout())
    assert (outcome.metrics["optim/gradient_norm"] > 0) is pulls
    assert (outcome.metrics["optim/skipped"] == 0) is pulls


@pytest.mark.parametrize("names", [("task",), ("spread",), ("task", "spread")])
def test_built_in_terms_or_functions_alone_make_a_reward(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Complaint 23: training crashes with only functions, or with only built-in rewards. Either kind alone, and both, start."""
    config = configured(tmp_path / "run", "scoring=dr_grpo")
    config.reward.terms = dict.fromkeys(names, 1.0)
    config.reward.functions = {name: "support.graders:spread" for name in names if name != "task"}
    task = build_task(config.data)
    spec = build_rewards(config, task)
    assert [term.name for term in spec.reward_funcs] == list(names)
    rows = {
        "completions": ["RG"],
        "prompts": ["x"],
        "completion_ids": [[1]],
        "columns": {"answer": [task.train_rows[0].answer]},
    }
    for term in spec.reward_funcs:
        [grade] = term(**rows)
        assert grade is not None
        assert math.isfinite(grade.reward)

"""Targets of a step: weights from q and reference, who takes part, and what stays out."""

import dataclasses

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals
from support.steps import Step, random_step, reward_computation, scoring_settings, targets_of

from maxent_grpo.config.scoring import DrGrpoScoringConfig, MaxEntScoringConfig
from maxent_grpo.training.method import Method, resolve_method
from maxent_grpo.training.targets import (
    group_evidence,
    group_scores,
    policy_group_log_probs,
    sequence_targets,
)
from maxent_grpo.training.types.choices import NeutralGroups, ScoreMode
from maxent_grpo.training.types.rewards import ReferenceLogprobs
from maxent_grpo.training.types.weighting import ControllerValues, WeightingSettings

METHOD: Method = resolve_method(scoring_settings(MaxEntScoringConfig()), score_mode=ScoreMode.sum, max_completion_len=8)


def example() -> Step:
    """The worked example: one group of four with rewards 1 0 0 1, one token each, reference -1 -2 -.5 -3."""
    step = random_step(num_prompts=4)
    everyone = torch.ones(1, 4, dtype=torch.bool)
    return dataclasses.replace(
        step,
        utilities=torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64),
        valid=everyone,
        complete=everyone,
        mask=torch.ones(4, 1, dtype=torch.bool),
        logp=torch.tensor([golden("lw.scores")], dtype=torch.float64).T,
        reference_logp=torch.tensor([[-1.0], [-2.0], [-0.5], [-3.0]], dtype=torch.float64),
        sampled_logp=torch.zeros(4, 1, dtype=torch.float64),
        keys=torch.zeros(1, 4, dtype=torch.long),
    )


def test_the_targets_of_the_worked_example_and_the_policy_beside_them() -> None:
    weighting = WeightingSettings(tau=0.5, beta=0.5)
    targets = targets_of(example(), METHOD, weighting, ScoreMode.sum)
    scores = group_scores(example().logp[:, 0], torch.ones(4, dtype=torch.long), weighting, ScoreMode.sum, 4)
    term = METHOD.group_loss(targets, scores)
    assert_equals(targets.log_q.exp()[0], golden("lw.q"))
    assert_equals(targets.log_weights.exp()[0], golden("lw.w.tau0.5.beta0.5"))
    assert_equals(targets.advantages[0], golden("adv.drgrpo.R2"))
    assert_equals(policy_group_log_probs(targets, scores).exp()[0], golden("lw.p_theta"))
    assert_equals(term.value[0], golden("lw.ce_loss"))
    assert_equals(term.coefficient[0], golden("lw.ce_grad_scores"))
    assert targets.group_size == 4


@pytest.mark.parametrize(
    ("policy", "taking_part"),
    [
        (NeutralGroups.keep, [True, True, True, True]),
        (NeutralGroups.skip_all_wrong, [True, True, False, True]),
        (NeutralGroups.skip, [True, False, False, True]),
    ],
)
def test_neutral_groups_follow_the_setting_and_have_slope_exactly_zero_when_out(
    policy: NeutralGroups, taking_part: list[bool]
) -> None:
    step = random_step()
    step.utilities[3] = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    weighting = WeightingSettings(neutral_groups=policy)
    targets = targets_of(step, METHOD, weighting, ScoreMode.sum)
    term = METHOD.group_loss(targets, step.logp.sum(dim=-1).view(4, 4))
    assert targets.listwise_valid.any(dim=-1).tolist() == taking_part
    assert (term.coefficient.abs().sum(dim=-1) > 0).tolist() == taking_part
    assert (term.value > 0).tolist() == taking_part
    assert not targets.advantages[1:3].any()


def test_invalid_and_truncated_completions_stay_out_of_the_listwise_term() -> None:
    step = random_step()
    step.utilities[3] = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    targets = targets_of(step, METHOD, WeightingSettings(), ScoreMode.sum)
    assert targets.listwise_valid[0].tolist() == [True, True, False, True]
    assert targets.listwise_valid[3].tolist() == [True, False, True, True]
    assert_equals(targets.log_weights.exp().sum(dim=-1), [1.0, 1.0, 0.0, 1.0])
    assert targets.log_weights[3, 1] == -torch.inf
    assert targets.advantages[3, 1] == 0.5
    assert targets.advantages[0, 2] == 0.0
    term = METHOD.group_loss(targets, step.logp.sum(dim=-1).view(4, 4))
    assert term.coefficient[3, 1] == 0
    assert_equals(term.coefficient.sum(dim=-1), [0.0] * 4)
    assert torch.isfinite(term.value).all()


def test_a_step_without_any_valid_row_has_targets_of_zero() -> None:
    step = random_step()
    empty = dataclasses.replace(
        step, valid=torch.zeros_like(step.valid), utilities=torch.full_like(step.utilities, torch.nan)
    )
    targets = targets_of(empty, METHOD, WeightingSettings(beta=0.2), ScoreMode.sum)
    term = METHOD.group_loss(targets, torch.zeros(4, 4, dtype=torch.float64))
    assert not targets.advantages.any()
    assert not term.coefficient.any()
    assert not term.value.any()


def test_the_controllers_values_and_not_the_settings_tilt_the_weights() -> None:
    step, weighting = random_step(), WeightingSettings(tau=0.1, beta=0.0)
    reference = ReferenceLogprobs(step.reference_logp.sum(dim=-1), step.lengths, step.logp.sum(-1), 0.0, 0.0)

    def weights(tau: float, beta: float, settings: WeightingSettings) -> torch.Tensor:
        values = ControllerValues(tau=tau, beta=beta, kl_beta=0.0)
        rewards = reward_computation(step, METHOD, settings)
        evidence = group_evidence(rewards, step.valid, step.complete, reference, settings)
        return sequence_targets(rewards, evidence, settings, values).log_weights.exp()

    moved = weights(0.7, 0.2, weighting)
    assert_equals(moved, weights(0.7, 0.2, WeightingSettings(tau=0.7, beta=0.2)))
    assert (moved - weights(0.1, 0.0, weighting)).abs().max() > 0.05


def test_without_a_reference_the_weights_are_those_of_a_flat_one() -> None:
    step, weighting = random_step(), WeightingSettings()
    rewards = reward_computation(step, METHOD, weighting)
    values = ControllerValues(tau=0.1, beta=0.0, kl_beta=0.0)
    evidence = group_evidence(rewards, step.valid, step.complete, None, weighting)
    alone = sequence_targets(rewards, evidence, weighting, values)
    assert torch.equal(alone.log_weights, targets_of(step, METHOD, weighting, ScoreMode.sum).log_weights)
    assert not alone.log_reference.any()


def test_groups_of_the_targets_are_cut_together() -> None:
    targets = targets_of(random_step(), METHOD, WeightingSettings(), ScoreMode.sum)
    part = targets.groups(1, 3)
    tensors = {name: value for name, value in vars(targets).items() if isinstance(value, torch.Tensor)}
    assert len(tensors) == len(vars(targets)) - 1
    for name, value in tensors.items():
        assert torch.equal(getattr(part, name), value[1:3]), name
    assert part.values == targets.values


def test_group_scores_carry_no_gradient_and_are_double() -> None:
    total = torch.tensor([-1.0, -2.0, -3.0, -4.0], requires_grad=True)
    lengths = torch.tensor([1, 2, 3, 4])
    for mode, expected in (
        (ScoreMode.sum, [[-1.0, -2.0], [-3.0, -4.0]]),
        (ScoreMode.mean, [[-1.0, -1.0], [-1.0, -1.0]]),
        (ScoreMode.const, [[-0.25, -0.5], [-0.75, -1.0]]),
    ):
        scores = group_scores(total, lengths, WeightingSettings(score_length=4), mode, 2)
        assert scores.dtype == torch.float64
        assert not scores.requires_grad
        assert_equals(scores, expected)


def test_a_purely_advantage_method_has_no_listwise_term() -> None:
    settings = scoring_settings(DrGrpoScoringConfig())
    method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=8)
    assert method.listwise_scale == 0.0
    assert method.listwise_clip is None

"""Each term of the loss against a hand-written formula, and its scale beside the others."""

import dataclasses

import pytest
import torch
from support.numbers import assert_equals
from support.steps import (
    plain_facts,
    random_step,
    reference_scores,
    run_step,
    settings_for,
    targets_of,
)
from torch import Tensor

from maxent_grpo.objective.divergence import KL_ESTIMATORS
from maxent_grpo.objective.logprobs import sequence_score, sequence_sum
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.types.choices import (
    BehaviorSource,
    KlEstimator,
    MismatchMode,
    NeutralGroups,
    Reduction,
    ScoreMode,
)
from maxent_grpo.training.types.runtime import MismatchSettings

CUTS = [(7,), (2, 3, 12)]
EVERY_ROW = tuple(range(1, 16))


def clipped_by_hand(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "maxent", "maxent_listwise"])
def test_the_loss_is_the_hand_written_sum_over_rows_and_tokens(name: str) -> None:
    step = random_step(seed=7)
    settings = settings_for(name, kl_beta=0.3, entropy_coef=0.02)
    settings.weighting.beta, settings.weighting.neutral_groups = 0.4, NeutralGroups.keep
    result = run_step(step, settings, max_completion_len=8)
    num_rows, num_groups = float(step.valid.sum()), 4.0
    weighting = settings.weighting
    policy, kl, entropy = 0.0, 0.0, 0.0
    for group in range(4):
        rewards = step.utilities[group][step.valid[group]]
        spread = rewards.std() + 1e-4 if name == "grpo" else 1.0
        for member in range(4):
            row = 4 * group + member
            if not step.valid[group, member]:
                continue
            advantage = (step.utilities[group, member] - rewards.mean()) / spread
            length = int(step.lengths[row])
            share = 1 / (num_rows * (max(length, 1) if name == "grpo" else 8))
            for t in range(length):
                ratio = (step.logp[row, t] - step.old_logp[row, t]).exp()
                d = step.logp[row, t] - step.reference_logp[row, t]
                policy -= share * float(clipped_by_hand(ratio, advantage, 0.2, 0.2))
                kl += share * float((-d).exp() - 1 + d)
                entropy += share * float(step.entropy[row, t] - step.logp[row, t])
    listwise = 0.0
    totals = torch.where(step.mask, step.logp, 0.0).sum(-1).view(4, 4)
    reference = torch.where(step.mask, step.reference_logp, 0.0).sum(-1).view(4, 4)
    for group in range(4):
        taken = step.valid[group] & step.complete[group]
        q = torch.softmax(step.utilities[group][taken], dim=-1)
        q = q * (1 - 1e-6 * len(q)) + 1e-6
        w = torch.softmax((q.log() + 0.4 * reference[group][taken]) / (0.1 + 0.4), dim=-1)
        listwise -= float((w * torch.log_softmax(totals[group][taken], dim=-1)).sum()) / num_groups
    factor = {"grpo": 0.0, "dr_grpo": 0.0, "maxent": weighting.listwise_coef / 8, "maxent_listwise": 1.0}[name]
    expected = {
        "policy_loss": 0.0 if name == "maxent_listwise" else policy,
        "weighted_kl_loss": 0.3 * kl,
        "kl_loss": kl,
        "entropy_loss": -0.02 * entropy,
        "listwise_loss": factor * listwise,
    }
    for part, value in expected.items():
        assert result.part(part) == pytest.approx(value, abs=1e-12), part
    assert float(result.loss) == pytest.approx(sum(expected.values()) - kl, abs=1e-12)
    assert result.part("total_loss") == pytest.approx(float(result.loss), abs=1e-12)


@pytest.mark.parametrize("mode", [ScoreMode.sum, ScoreMode.mean, ScoreMode.const])
def test_the_listwise_gradient_is_that_of_the_whole_cross_entropy(mode: ScoreMode) -> None:
    step = random_step(seed=8)
    settings = settings_for("maxent_listwise")
    settings.weighting.score_length, settings.weighting.beta = 5, 0.2
    method = resolve_method(settings, score_mode=mode, max_completion_len=8)
    targets = targets_of(step, method, settings.weighting, mode)
    logp = step.logp.clone().requires_grad_()
    unit = {
        ScoreMode.sum: torch.ones(16, dtype=torch.long),
        ScoreMode.mean: step.lengths.clamp(min=1),
        ScoreMode.const: torch.full((16,), 5),
    }[mode]
    scores = (torch.where(step.mask, logp, 0.0).sum(dim=-1) / unit).view(4, 4)
    reference = (torch.where(step.mask, step.reference_logp, 0.0).sum(dim=-1) / unit).view(4, 4)
    value = torch.zeros((), dtype=torch.float64)
    for group in range(4):
        taken = targets.listwise_valid[group]
        if taken.any():
            w = torch.softmax((targets.log_q[group][taken] + 0.2 * reference[group][taken]) / 0.3, dim=-1)
            value = value - (w * torch.log_softmax(scores[group][taken], dim=-1)).sum() / 4
    (slope,) = torch.autograd.grad(value, logp)
    result = run_step(step, settings, score_mode=mode, cuts=(3, 6))
    assert_equals(result.loss, value.detach())
    assert_equals(result.gradient, slope)
    assert float(slope.abs().max()) > 1e-3


def test_policy_and_reference_are_scored_in_the_same_mode() -> None:
    step, settings = random_step(), settings_for("maxent_listwise")
    for mode in (ScoreMode.sum, ScoreMode.mean, ScoreMode.const):
        raw = sequence_sum(step.reference_logp, step.mask)
        expected = sequence_score(raw, step.lengths, mode=mode, score_length=settings.weighting.score_length)
        assert torch.equal(reference_scores(step, settings.weighting, mode).ref_logp_sum, expected)


@pytest.mark.parametrize("mode", [ScoreMode.sum, ScoreMode.const])
def test_the_length_limit_alone_leaves_the_balance_of_the_two_terms_as_it_was(mode: ScoreMode) -> None:
    step, settings = random_step(seed=9), settings_for("maxent")
    ratios, policies = [], []
    for limit in (8, 16, 1024):
        result = run_step(step, settings, score_mode=mode, max_completion_len=limit)
        ratios.append(result.part("listwise_loss") / result.part("policy_loss"))
        policies.append(result.part("policy_loss"))
    assert ratios[1:] == pytest.approx(ratios[:1] * 2, rel=1e-12)
    assert policies[1] == pytest.approx(policies[0] / 2, rel=1e-12)
    longer = settings_for("maxent")
    longer.weighting.score_length = 512
    doubled = run_step(step, longer, score_mode=mode, max_completion_len=8)
    if mode is ScoreMode.sum:
        assert doubled.part("listwise_loss") == run_step(step, settings, max_completion_len=8).part("listwise_loss")
    else:
        assert resolve_method(longer, score_mode=mode, max_completion_len=8).listwise_scale == pytest.approx(
            2 * resolve_method(settings, score_mode=mode, max_completion_len=8).listwise_scale
        )


def test_the_listwise_term_keeps_its_own_scale_where_no_constant_divides_the_policy_term() -> None:
    for name, reduction in (("maxent_listwise", Reduction.constant), ("maxent", Reduction.token)):
        settings = settings_for(name, reduction=reduction)
        for limit in (8, 64):
            method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=limit)
            assert method.listwise_scale == settings.weighting.listwise_coef


@pytest.mark.parametrize("estimator", [each for each in KlEstimator if each in KL_ESTIMATORS])
def test_the_kl_loss_is_the_weighted_one_without_its_coefficient(estimator: KlEstimator) -> None:
    step = random_step(seed=10)
    results = {
        beta: run_step(step, settings_for("grpo", kl_beta=beta, kl_estimator=estimator)) for beta in (0.0, 0.1, 0.4)
    }
    assert results[0.0].part("kl_loss") == 0.0
    assert results[0.0].part("weighted_kl_loss") == 0.0
    assert results[0.1].part("kl_loss") == pytest.approx(results[0.4].part("kl_loss"), rel=1e-12)
    assert results[0.4].part("weighted_kl_loss") == pytest.approx(0.4 * results[0.4].part("kl_loss"), rel=1e-12)
    d = torch.where(step.mask, step.logp - step.reference_logp, 0.0)
    rows = KL_ESTIMATORS[estimator](d).sum(dim=-1) / step.lengths.clamp(min=1)
    assert results[0.1].part("kl_loss") == pytest.approx(float(rows.sum()) / 15, rel=1e-12)


@pytest.mark.parametrize("cuts", [(), *CUTS, EVERY_ROW])
def test_the_entropy_bonus_adds_exactly_its_coefficient_times_the_mean_entropy_of_the_trained_tokens(
    cuts: tuple[int, ...],
) -> None:
    step = random_step(seed=11)
    mean = float((step.entropy - step.logp)[step.mask].mean())
    without = run_step(step, settings_for("dr_grpo", reduction=Reduction.token))
    with_bonus = run_step(step, settings_for("dr_grpo", reduction=Reduction.token, entropy_coef=0.05), cuts=cuts)
    assert float(with_bonus.loss - without.loss) == pytest.approx(-0.05 * mean, abs=1e-12)


@pytest.mark.parametrize("mode", [mode for mode in MismatchMode if mode is not MismatchMode.bypass])
def test_the_mismatch_correction_weights_the_policy_term_and_not_the_kl_term(mode: MismatchMode) -> None:
    step = random_step(seed=12)
    options = {"kl_beta": 0.1, "behavior_logprobs_source": BehaviorSource.sampler}
    corrected = run_step(step, settings_for("dr_grpo", mismatch=MismatchSettings(mode, 1.2, 0.8), **options))
    bypass = run_step(step, settings_for("dr_grpo", mismatch=MismatchSettings(MismatchMode.bypass), **options))
    gap = torch.where(step.mask, step.old_logp - step.sampled_logp, 0.0)
    length = step.lengths.clamp(min=1).unsqueeze(-1)
    total = gap.sum(dim=-1, keepdim=True) / (length if mode.startswith("geometric") else 1)
    w = (gap if mode.startswith("token") else total).exp().expand_as(gap)
    floor = 0.0 if mode is MismatchMode.sequence_mask else 0.8
    w = w.clamp(max=1.2) if mode.endswith("truncate") else torch.where((w >= floor) & (w <= 1.2), w, 0.0)
    method = resolve_method(settings_for("dr_grpo"), score_mode=ScoreMode.sum, max_completion_len=8)
    assert method.advantages is not None
    advantage = method.advantages(step.utilities, plain_facts(step.valid)).view(-1, 1)
    ratio = torch.where(step.mask, step.logp - step.old_logp, 0.0).exp()
    token = torch.where(step.mask, w * clipped_by_hand(ratio, advantage, 0.2, 0.2), 0.0)
    assert corrected.part("policy_loss") == pytest.approx(-float(token.sum()) / (15 * 8), abs=1e-12)
    assert corrected.part("policy_loss") != pytest.approx(bypass.part("policy_loss"), abs=1e-6)
    assert corrected.part("weighted_kl_loss") == bypass.part("weighted_kl_loss")


def test_the_sampler_as_behaviour_policy_without_correction_asks_for_its_ratio() -> None:
    def resolved(source: BehaviorSource, mode: MismatchMode) -> tuple[bool, bool]:
        settings = settings_for("grpo", behavior_logprobs_source=source, mismatch=MismatchSettings(mode))
        method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=8)
        return method.ratio_from_sampler, method.mismatch is not None

    for sampler in (BehaviorSource.sampler, BehaviorSource.vllm):
        assert resolved(sampler, MismatchMode.bypass) == (True, False)
        assert resolved(sampler, MismatchMode.token_truncate) == (False, True)
    assert resolved(BehaviorSource.model, MismatchMode.token_truncate) == (False, False)


@pytest.mark.parametrize(("baseline", "coef"), [(None, 1.0), (0.4, 1.0), (0.0, 0.5), (None, 2.0)])
def test_the_clipped_auxiliary_listwise_term_is_the_hand_written_one(baseline: float | None, coef: float) -> None:
    step, settings = random_step(seed=13), settings_for("maxent_listwise")
    settings.clipping = dataclasses.replace(
        settings.clipping,
        use_clip_objective=True,
        clip_adv_baseline=baseline,
        clip_objective_coef=coef,
        clip_range_high=0.05,
        clip_range=0.1,
    )
    method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=8)
    targets = targets_of(step, method, settings.weighting, ScoreMode.sum)
    assert method.advantages is None
    value, clipped = 0.0, 0
    for group in range(4):
        members = [i for i in range(4) if targets.listwise_valid[group, i]]
        for member in members:
            row = 4 * group + member
            gap = (step.logp[row] - step.old_logp[row])[step.mask[row]]
            ratio = gap.mean().exp() if len(gap) else torch.ones((), dtype=torch.float64)
            a = targets.log_weights[group, member].exp() - (1 / len(members) if baseline is None else baseline)
            clipped += int((a > 0 and ratio > 1.05) or (a < 0 and ratio < 0.9))
            value -= float(clipped_by_hand(ratio, a, 0.1, 0.05)) / 4
    result = run_step(step, settings, cuts=(2, 7))
    without = run_step(step, settings_for("maxent_listwise"))
    assert clipped > 0
    assert result.part("clip_loss") == pytest.approx(value, abs=1e-12)
    assert float(result.loss - without.loss) == pytest.approx(coef * value, abs=1e-12)
    assert without.parts[0].clip_loss is None
    assert (result.gradient - without.gradient).abs().max() > 1e-3


def test_methods_with_advantages_have_no_auxiliary_term() -> None:
    for name in ("grpo", "dr_grpo", "maxent"):
        assert run_step(random_step(), settings_for(name)).parts[0].clip_loss is None

"""The loss of a slice: reference numbers, slicing, padding, gradients, each term against a hand-written formula."""

import dataclasses

import pytest
import torch
from support.numbers import assert_equals
from support.steps import (
    Step,
    StepResult,
    random_step,
    reference_scores,
    run_step,
    scores_of,
    scoring_settings,
    slice_targets,
    targets_of,
)
from torch import Tensor

from maxent_grpo.config.scoring import (
    DrGrpoScoringConfig,
    GrpoScoringConfig,
    MaxEntListwiseScoringConfig,
    MaxEntScoringConfig,
    ScoringConfig,
)
from maxent_grpo.objective.divergence import KL_ESTIMATORS
from maxent_grpo.objective.logprobs import sequence_score, sequence_sum
from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.training.loss import SliceTargets, compute_loss
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.types.choices import (
    BehaviorSource,
    KlEstimator,
    MismatchMode,
    NeutralGroups,
    RatioLevel,
    Reduction,
    ScoreMode,
)
from maxent_grpo.training.types.runtime import MismatchSettings, ScoringSettings

OPTIONS: dict[str, type[ScoringConfig]] = {
    "grpo": GrpoScoringConfig,
    "dr_grpo": DrGrpoScoringConfig,
    "maxent": MaxEntScoringConfig,
    "maxent_listwise": MaxEntListwiseScoringConfig,
}
CUTS = [(7,), (2, 3, 12)]
EVERY_ROW = tuple(range(1, 16))


def settings_for(name: str, **changes: object) -> ScoringSettings:
    return dataclasses.replace(scoring_settings(OPTIONS[name]()), **changes)


def constant_step(lengths: list[int], *, masked: tuple[int, ...] = ()) -> Step:
    """Rows of the given lengths at ratio exactly 1; ``masked`` rows train no token."""
    rows, width = len(lengths), max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(-1)
    mask[list(masked)] = False
    logp = -torch.ones(rows, width, dtype=torch.float64)
    everyone = torch.ones(1, rows, dtype=torch.bool)
    return Step(everyone.double(), everyone, everyone, mask, logp, logp, logp, logp, torch.zeros_like(logp))


def plain_targets(advantages: list[float]) -> SliceTargets:
    nothing = torch.zeros(len(advantages), dtype=torch.float64)
    values = torch.tensor(advantages, dtype=torch.float64)
    return SliceTargets(values, None, None, nothing, nothing, nothing, nothing)


def objective_value(step: Step, advantages: list[float], reduction: Reduction, **options: object) -> StepResult:
    cuts, counts = options.pop("cuts", ()), options.pop("counts", None)
    settings = settings_for("dr_grpo", reduction=reduction, **options)
    return run_step(step, settings, cuts=cuts, counts=counts, targets=plain_targets(advantages))


LENGTHS, ADVANTAGES = [1, 2, 3, 6], [1.0, -1.0, 2.0, 0.5]
MEANS = [(Reduction.token, 8 / 12), (Reduction.sequence, 0.625), (Reduction.constant, 0.25)]


@pytest.mark.parametrize(("reduction", "mean"), MEANS)
@pytest.mark.parametrize("cuts", [(), (2,), (1,), (3,), (1, 2, 3), (1, 3)])
def test_each_reduction_has_its_own_mean_whatever_the_split(
    reduction: Reduction, mean: float, cuts: tuple[int, ...]
) -> None:
    step = constant_step(LENGTHS)
    result = objective_value(step, ADVANTAGES, reduction, cuts=cuts)
    whole = objective_value(step, ADVANTAGES, reduction)
    assert_equals(result.loss, -mean)
    assert_equals(result.gradient, whole.gradient)
    assert_equals(result.gradient.sum(), -mean)


def test_a_mean_of_each_slices_own_token_means_would_be_another_number() -> None:
    step = constant_step(LENGTHS)
    own = [
        objective_value(constant_step(LENGTHS[a:b]), ADVANTAGES[a:b], Reduction.token).loss for a, b in ((0, 2), (2, 4))
    ]
    assert_equals(torch.stack(own).mean(), -(-1 / 3 + 1.0) / 2)
    assert_equals(objective_value(step, ADVANTAGES, Reduction.token, cuts=(2,)).loss, -2 / 3)


@pytest.mark.parametrize("window", [28, 4, 16])
def test_a_window_of_any_number_of_tokens_has_scale_one(window: int) -> None:
    result = objective_value(constant_step([window // 4] * 4), [-1.0] * 4, Reduction.token, cuts=(1, 2, 3))
    assert_equals(result.loss, 1.0)


def test_a_masked_completion_leaves_numerator_and_denominator() -> None:
    step = constant_step(LENGTHS, masked=(3,))
    for cuts in ((), (2,), (1, 2, 3)):
        result = objective_value(step, ADVANTAGES, Reduction.token, cuts=cuts)
        assert_equals(result.loss, -5 / 6)
        assert torch.equal(result.gradient[3], torch.zeros(6, dtype=torch.float64))


def test_tokens_of_a_completion_with_advantage_zero_count_in_the_denominator() -> None:
    step = constant_step(LENGTHS)
    assert_equals(objective_value(step, [1.0, -1.0, 2.0, 0.0], Reduction.token, cuts=(3,)).loss, -5 / 12)


def test_the_last_shorter_window_is_a_step_of_its_own() -> None:
    last = constant_step(LENGTHS[2:])
    accumulated = objective_value(last, ADVANTAGES[2:], Reduction.sequence, cuts=(1,))
    together = objective_value(last, ADVANTAGES[2:], Reduction.sequence)
    assert_equals(accumulated.gradient, together.gradient)
    assert_equals(accumulated.loss, -1.25)


def test_the_sequence_ratio_does_not_weight_completions_by_length() -> None:
    step = constant_step([1, 9])
    even = objective_value(step, [1.0, -1.0], Reduction.sequence, ratio_level=RatioLevel.sequence)
    by_tokens = objective_value(step, [1.0, -1.0], Reduction.token, ratio_level=RatioLevel.sequence)
    assert_equals(even.loss, 0.0)
    assert_equals(-by_tokens.loss, -0.8)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("reduction", list(Reduction))
def test_a_slice_with_every_token_masked_has_loss_zero_and_finite_zero_gradients(
    name: str, reduction: Reduction
) -> None:
    step = random_step()
    nobody = torch.zeros_like(step.valid)
    nothing = dataclasses.replace(step, mask=torch.zeros_like(step.mask), valid=nobody).poisoned(float("nan"))
    settings = settings_for(name, reduction=reduction, kl_beta=0.1, entropy_coef=0.01)
    result = run_step(nothing, settings, counts=StepCounts(0, 0, 0))
    assert result.loss.item() == 0.0
    assert torch.equal(result.gradient, torch.zeros_like(result.gradient))
    assert all(value == value for value in dataclasses.asdict(result.parts[0]).values() if value is not None)


VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "k1": {"kl_beta": 0.2, "kl_estimator": KlEstimator.k1},
    "k2": {"kl_beta": 0.2, "kl_estimator": KlEstimator.k2},
    "k3": {"kl_beta": 0.2, "kl_estimator": KlEstimator.k3},
    "entropy": {"entropy_coef": 0.05},
    "sequence_ratio": {"ratio_level": RatioLevel.sequence},
    "token_mean": {"reduction": Reduction.token},
    "all_together": {"kl_beta": 0.2, "entropy_coef": 0.05, "ratio_level": RatioLevel.sequence},
} | {
    f"mismatch_{mode}": {
        "behavior_logprobs_source": BehaviorSource.sampler,
        "mismatch": MismatchSettings(mode, 1.3, 0.7),
    }
    for mode in MismatchMode
}


@pytest.mark.parametrize("clip", [True, False], ids=["clip", "no_clip"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", OPTIONS)
def test_slices_add_up_to_the_step_in_loss_and_gradient(name: str, variant: str, clip: bool) -> None:
    settings = settings_for(name, **VARIANTS[variant])
    settings.clipping = dataclasses.replace(settings.clipping, use_clip_objective=clip)
    step = random_step(seed=1)
    whole = run_step(step, settings)
    assert float(whole.gradient.abs().max()) > 1e-4
    for cuts in [*CUTS, EVERY_ROW] if variant in ("plain", "all_together") else CUTS:
        pieces = run_step(step, settings, cuts=cuts)
        assert_equals(pieces.loss, whole.loss)
        assert_equals(pieces.gradient, whole.gradient)
        for part in ("total_loss", "policy_loss", "kl_loss", "weighted_kl_loss", "listwise_loss", "entropy_loss"):
            assert pieces.part(part) == pytest.approx(whole.part(part), abs=1e-12), part


@pytest.mark.parametrize("name", OPTIONS)
def test_a_slice_normalised_by_its_own_counts_would_not_add_up(name: str) -> None:
    settings, step = settings_for(name), random_step(seed=1)
    whole = run_step(step, settings)
    own = run_step(step, settings, cuts=(4, 8, 12), counts=StepCounts(4, 14, 1))
    assert abs(float(own.loss - whole.loss)) > 1e-3


@pytest.mark.parametrize(
    "variant", ["plain", "all_together", "k3", "mismatch_token_truncate", "mismatch_sequence_mask"]
)
@pytest.mark.parametrize("name", OPTIONS)
def test_poison_in_the_padding_changes_neither_loss_nor_gradient(name: str, variant: str) -> None:
    settings, step = settings_for(name, **VARIANTS[variant]), random_step(seed=2)
    assert (~step.mask).any()
    clean = run_step(step, settings)
    for poison in (float("nan"), float("inf"), -float("inf")):
        poisoned = run_step(step.poisoned(poison), settings)
        assert torch.equal(poisoned.loss, clean.loss)
        assert torch.equal(poisoned.gradient, clean.gradient)
    assert torch.isfinite(clean.gradient).all()
    assert not clean.gradient[~step.mask].any()


@pytest.mark.parametrize("name", OPTIONS)
def test_extreme_log_probabilities_stay_finite_in_single_precision(name: str) -> None:
    step = random_step(seed=3)
    wild = step.logp.clone()
    wild[::2] *= 1e4
    settings = settings_for(name, kl_beta=0.1)
    settings.weighting.beta = 0.1
    result = run_step(dataclasses.replace(step, logp=wild).to(torch.float32), settings)
    assert result.loss.dtype == torch.float32
    assert torch.isfinite(result.loss)
    assert torch.isfinite(result.gradient).all()


@pytest.mark.parametrize("name", OPTIONS)
def test_single_precision_agrees_with_double(name: str) -> None:
    settings = settings_for(name, kl_beta=0.1, entropy_coef=0.01)
    double = run_step(random_step(seed=4), settings)
    single = run_step(random_step(seed=4).to(torch.float32), settings)
    assert_equals(single.loss, double.loss, tolerance=5e-6)
    assert_equals(single.gradient, double.gradient, tolerance=5e-6)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo"])
def test_at_ratio_one_every_clip_has_bitwise_the_gradient_of_the_plain_policy_gradient(name: str) -> None:
    step = random_step(seed=5)
    on_policy = dataclasses.replace(step, old_logp=step.logp)
    base = settings_for(name)
    method = resolve_method(base, score_mode=ScoreMode.sum, max_completion_len=8)
    targets = slice_targets(
        step, targets_of(step, method, base.weighting, ScoreMode.sum), base.weighting, ScoreMode.sum
    )
    per_row = method.coefficients(step.lengths, step.counts)
    expected = torch.where(step.mask, -(targets.advantages * per_row).unsqueeze(-1), 0.0)
    clips = [(False, 0.2, None, None), (True, 0.2, None, None), (True, 3e-4, 4e-4, None), (True, 0.2, 0.28, 4.0)]
    for use, low, high, delta in clips:
        clip = dataclasses.replace(
            base.clipping, use_clip_objective=use, clip_range=low, clip_range_high=high, clip_delta=delta
        )
        assert torch.equal(run_step(on_policy, dataclasses.replace(base, clipping=clip)).gradient, expected)
    level = dataclasses.replace(base, ratio_level=RatioLevel.sequence)
    assert_equals(run_step(on_policy, level).gradient, expected)
    assert float(expected.abs().max()) > 1e-3


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("clip", [True, False])
def test_no_gradient_reaches_advantages_weights_reference_or_behaviour(name: str, clip: bool) -> None:
    step = random_step(seed=6)
    settings = settings_for(
        name,
        kl_beta=0.1,
        behavior_logprobs_source=BehaviorSource.sampler,
        mismatch=MismatchSettings(MismatchMode.token_truncate, 2.0, 0.5),
    )
    settings.clipping = dataclasses.replace(settings.clipping, use_clip_objective=clip)
    method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=8)
    plain = slice_targets(
        step, targets_of(step, method, settings.weighting, ScoreMode.sum), settings.weighting, ScoreMode.sum
    )
    fixed = {field.name: getattr(plain, field.name).requires_grad_() for field in dataclasses.fields(plain)}
    logp = step.logp.clone().requires_grad_()
    old = step.old_logp.clone().requires_grad_()
    scores = scores_of(step, logp, slice(0, 16))
    scores.old_token_logp = old
    loss = compute_loss(
        scores,
        SliceTargets(**fixed),
        method,
        settings.weighting,
        score_mode=ScoreMode.sum,
        kl_beta=0.1,
        counts=step.counts,
    ).loss
    names = [*fixed, "old_logp"]
    slopes = torch.autograd.grad(loss, [*fixed.values(), old, logp], allow_unused=True)
    reached = [who for who, slope in zip(names, slopes[:-1], strict=True) if slope is not None and slope.any()]
    assert reached == []
    assert slopes[-1].abs().max() > 1e-4


def clipped_by_hand(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


@pytest.mark.parametrize("name", OPTIONS)
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
        q = torch.softmax(step.utilities[group][step.valid[group]], dim=-1)
        q = q * (1 - 1e-6 * len(q)) + 1e-6
        log_q = q.log()[taken[step.valid[group]]]
        w = torch.softmax((log_q + 0.4 * reference[group][taken]) / (0.1 + 0.4), dim=-1)
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


@pytest.mark.parametrize("estimator", list(KlEstimator))
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
    w = (gap.sum(dim=-1, keepdim=True) if mode.startswith("sequence") else gap).exp().expand_as(gap)
    floor = 0.8 if mode is MismatchMode.token_mask else 0.0
    w = w.clamp(max=1.2) if mode.endswith("truncate") else torch.where((w >= floor) & (w <= 1.2), w, 0.0)
    method = resolve_method(settings_for("dr_grpo"), score_mode=ScoreMode.sum, max_completion_len=8)
    advantage = method.advantages(step.utilities, step.valid).view(-1, 1)
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

"""The loss of a slice: reference numbers, slicing, padding, and where gradient may flow."""

import dataclasses
from typing import Any

import pytest
import torch
from support.numbers import assert_equals
from support.steps import (
    OPTIONS,
    Step,
    StepResult,
    choice_of,
    random_step,
    run_step,
    scores_of,
    settings_for,
    slice_targets,
    targets_of,
)

from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.training.loss import SliceTargets, compute_loss
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.types.choices import (
    BehaviorSource,
    KlEstimator,
    MismatchMode,
    RatioLevel,
    Reduction,
    ScoreMode,
)
from maxent_grpo.training.types.runtime import MismatchSettings

CUTS = [(7,), (2, 3, 12)]
EVERY_ROW = tuple(range(1, 16))


def constant_step(lengths: list[int], *, masked: tuple[int, ...] = ()) -> Step:
    """Rows of the given lengths at ratio exactly 1; ``masked`` rows train no token."""
    rows, width = len(lengths), max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(-1)
    mask[list(masked)] = False
    logp = -torch.ones(rows, width, dtype=torch.float64)
    everyone = torch.ones(1, rows, dtype=torch.bool)
    zero, nothing = torch.zeros_like(logp), torch.zeros(1, rows, dtype=torch.long)
    return Step(everyone.double(), everyone, everyone, mask, logp, logp, logp, logp, zero, nothing, zero)


def plain_targets(advantages: list[float]) -> SliceTargets:
    nothing = torch.zeros(len(advantages), dtype=torch.float64)
    values = torch.tensor(advantages, dtype=torch.float64)
    return SliceTargets(values, None, None, nothing, nothing, nothing, nothing)


def objective_value(
    step: Step,
    advantages: list[float],
    reduction: Reduction,
    *,
    cuts: tuple[int, ...] = (),
    ratio_level: RatioLevel = RatioLevel.token,
) -> StepResult:
    settings = settings_for("dr_grpo", reduction=reduction, ratio_level=ratio_level)
    return run_step(step, settings, cuts=cuts, targets=plain_targets(advantages))


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


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "k1": {"kl_beta": 0.2, "kl_estimator": KlEstimator.k1},
    "k2": {"kl_beta": 0.2, "kl_estimator": KlEstimator.k2},
    "k3": {"kl_beta": 0.2, "kl_estimator": KlEstimator.k3},
    "k3_is": {"kl_beta": 0.2, "kl_estimator": KlEstimator.k3_is},
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


REDUCED_BY_STEP = [name for name in OPTIONS if name != "bnpo"]
"""Methods whose tokens are weighted by counts of the step; those of `bnpo` depend on the slice."""

ONE_OF_EACH_KIND = ("grpo", "maxent", "maxent_listwise", "cispo", "kl_cov")
"""Clipped, with a listwise term, listwise alone, another surrogate, a choice of tokens."""

SLICED = [(name, "plain") for name in REDUCED_BY_STEP] + [
    (name, variant) for name in ONE_OF_EACH_KIND for variant in VARIANTS if variant != "plain"
]


@pytest.mark.parametrize("clip", [True, False], ids=["clip", "no_clip"])
@pytest.mark.parametrize(("name", "variant"), SLICED)
def test_slices_add_up_to_the_step_in_loss_and_gradient(name: str, variant: str, clip: bool) -> None:
    settings = settings_for(name, **VARIANTS[variant])
    settings.clipping = dataclasses.replace(settings.clipping, use_clip_objective=clip)
    step = random_step(seed=1)
    whole = run_step(step, settings)
    assert float(whole.gradient.abs().max()) > 1e-4
    for cuts in [(2, 3, 12), EVERY_ROW] if variant in ("plain", "all_together") else CUTS[:1]:
        pieces = run_step(step, settings, cuts=cuts)
        assert_equals(pieces.loss, whole.loss)
        assert_equals(pieces.gradient, whole.gradient)
        for part in ("total_loss", "policy_loss", "kl_loss", "weighted_kl_loss", "listwise_loss", "entropy_loss"):
            assert pieces.part(part) == pytest.approx(whole.part(part), abs=1e-12), part


@pytest.mark.parametrize("name", REDUCED_BY_STEP)
def test_a_slice_normalised_by_its_own_counts_would_not_add_up(name: str) -> None:
    settings, step = settings_for(name), random_step(seed=1)
    whole = run_step(step, settings)
    own = run_step(step, settings, cuts=(4, 8, 12), counts=StepCounts(4, 14, 1))
    assert float((own.gradient - whole.gradient).abs().max()) > 1e-3


@pytest.mark.parametrize("variant", ["all_together", "k3", "mismatch_token_truncate", "mismatch_sequence_mask"])
@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
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
    whole = targets_of(step, method, settings.weighting, ScoreMode.sum)
    choice = choice_of(step, method, settings, whole.advantages)
    plain = slice_targets(step, method, whole, settings.weighting, ScoreMode.sum, choice)
    tensors = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    masks = {name: tensors.pop(name) for name in ("trained_tokens", "held_tokens")}
    fixed = {name: value.requires_grad_() for name, value in tensors.items() if value is not None}
    logp = step.logp.clone().requires_grad_()
    old = step.old_logp.clone().requires_grad_()
    scores = scores_of(step, logp, slice(0, 16))
    scores.old_token_logp = old
    loss = compute_loss(
        scores,
        SliceTargets(**fixed, **masks),
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

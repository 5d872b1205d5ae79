"""The clipped surrogate: value and gradient of every variant, and the tokens a clip stops."""

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals, both_precisions
from torch import Tensor

from maxent_grpo.objective.surrogate import (
    clipped_objective,
    clipped_tokens,
    plain_objective,
    soft_gate_objective,
    weighted_likelihood_objective,
)

COLUMNS = {name: place for place, name in enumerate(golden("surrogate.cols"))}
ROWS = torch.tensor(golden("surrogate.rows"), dtype=torch.float64)


def column(name: str) -> Tensor:
    return ROWS[:, COLUMNS[name]]


@both_precisions
@pytest.mark.parametrize(
    ("variant", "delta"),
    [("clip", None), ("delta4", 4.0), ("dualclip3", 3.0)],
)
def test_value_and_gradient_match_the_worked_examples(variant: str, delta: float | None, dtype: torch.dtype) -> None:
    logp = column("ratio").log().to(dtype).requires_grad_()
    objective = clipped_objective(logp.exp(), column("A").to(dtype), low=0.2, high=0.28, delta=delta)
    (slope,) = torch.autograd.grad(objective.sum(), logp)
    assert_equals(objective, column(f"{variant}_obj"))
    assert_equals(slope, column(f"{variant}_dlogp"))


@both_precisions
def test_the_plain_objective_is_ratio_times_advantage_in_value_and_slope(dtype: torch.dtype) -> None:
    logp = column("ratio").log().to(dtype).requires_grad_()
    objective = plain_objective(logp.exp(), column("A").to(dtype))
    (slope,) = torch.autograd.grad(objective.sum(), logp)
    assert_equals(objective, column("ratio") * column("A"))
    assert_equals(slope, column("ratio") * column("A"))


def test_a_huge_ratio_with_a_negative_advantage_is_stopped_only_by_the_cap() -> None:
    logp = torch.tensor([5.0], dtype=torch.float64).log().requires_grad_()
    advantage = torch.tensor([-1.0], dtype=torch.float64)
    for delta, value, slope in ((None, -5.0, -5.0), (3.0, -3.0, 0.0)):
        objective = clipped_objective(logp.exp(), advantage, low=0.2, high=0.2, delta=delta)
        assert_equals(objective, [value])
        assert_equals(torch.autograd.grad(objective.sum(), logp)[0], [slope])


def test_at_ratio_one_every_variant_has_bitwise_the_plain_gradient() -> None:
    generator = torch.Generator().manual_seed(3)
    advantage = torch.randn(64, generator=generator)
    behaviour = -torch.rand(64, generator=generator)
    slopes = []
    for clip in (None, (0.2, 0.28, None), (0.2, 0.28, 4.0), (0.0, 0.0, None), (3e-4, 4e-4, None)):
        logp = behaviour.clone().requires_grad_()
        ratio = (logp - behaviour).exp()
        if clip is None:
            objective = plain_objective(ratio, advantage)
        else:
            low, high, delta = clip
            objective = clipped_objective(ratio, advantage, low=low, high=high, delta=delta)
        slopes.append(torch.autograd.grad(objective.sum(), logp)[0])
    for slope in slopes:
        assert torch.equal(slope, advantage)


def test_no_gradient_reaches_the_advantage() -> None:
    advantage = torch.tensor([1.0, -2.0], requires_grad=True)
    ratio = torch.tensor([1.1, 0.9], requires_grad=True)
    for objective in (plain_objective(ratio, advantage), clipped_objective(ratio, advantage, low=0.2, high=0.2)):
        assert torch.autograd.grad(objective.sum(), [ratio, advantage], allow_unused=True)[1] is None


def test_the_clip_counts_only_tokens_whose_gradient_it_removes() -> None:
    ratio = torch.tensor([0.5, 1.5, 1.5, 0.5], dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    mask = torch.ones(4, dtype=torch.bool)
    stopped = clipped_tokens(ratio, advantage, mask, low=0.2, high=0.28)
    assert stopped.low.tolist() == [False, False, False, True]
    assert stopped.high.tolist() == [False, False, True, False]
    assert float((stopped.low | stopped.high).double().mean()) == 0.5
    (slope,) = torch.autograd.grad(clipped_objective(ratio, advantage, low=0.2, high=0.28).sum(), ratio)
    assert torch.equal(slope == 0, stopped.low | stopped.high)


def test_the_clip_counts_no_masked_token_and_none_at_ratio_one() -> None:
    ratio, advantage = torch.tensor([1.5, 0.5, 1.0, 1.0]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    nothing = clipped_tokens(ratio, advantage, torch.tensor([False, False, True, True]), low=0.2, high=0.2)
    assert not nothing.low.any()
    assert not nothing.high.any()


@both_precisions
def test_the_capped_weight_is_the_slope_of_the_weighted_likelihood(dtype: torch.dtype) -> None:
    logp = column("ratio").log().to(dtype).requires_grad_()
    objective = weighted_likelihood_objective(logp.exp(), logp, column("A").to(dtype), cap=5.0)
    (slope,) = torch.autograd.grad(objective.sum(), logp)
    assert_equals(slope, column("cispo_max5_dlogp"))


@both_precisions
def test_the_soft_gate_matches_the_worked_examples_and_is_smooth_at_one(dtype: torch.dtype) -> None:
    logp = column("ratio").log().to(dtype).requires_grad_()
    objective = soft_gate_objective(
        logp.exp(), column("A").to(dtype), positive_temperature=1.0, negative_temperature=1.05
    )
    assert_equals(objective, column("sapo_obj"))
    (slope,) = torch.autograd.grad(objective.sum(), logp)
    at_one = column("ratio") == 1.0
    assert_equals(slope[at_one], column("A")[at_one])

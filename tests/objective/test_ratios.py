"""Importance ratios: per token, per sequence, bounded, blind to padding."""

import math

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals, both_precisions
from torch import Tensor

from maxent_grpo.objective.ratios import log_ratio, sequence_ratio, token_ratio
from maxent_grpo.objective.surrogate import clipped_objective

GAPS = [[0.02, -0.01, 0.03], [0.1, 0.2, float("nan")]]
MASK = torch.tensor([[True, True, True], [True, True, False]])


@both_precisions
def test_the_sequence_ratio_is_the_geometric_mean_of_the_token_ratios(dtype: torch.dtype) -> None:
    gaps = torch.tensor(GAPS, dtype=dtype)
    ratios = sequence_ratio(log_ratio(gaps, torch.zeros_like(gaps), MASK), MASK)
    assert_equals(ratios[:, 0], golden("gspo.s"))
    assert torch.equal(ratios, ratios[:, :1].expand(2, 3))


@both_precisions
def test_the_sequence_clip_and_its_gradient_match_the_worked_example(dtype: torch.dtype) -> None:
    logp = torch.tensor([[0.02, -0.01, 0.03], [0.1, 0.2, 0.0]], dtype=dtype, requires_grad=True)
    ratios = sequence_ratio(log_ratio(logp, torch.zeros_like(logp), MASK), MASK)[:, 0]
    advantages = torch.tensor([1.0, -1.0], dtype=dtype)
    objective = clipped_objective(ratios, advantages, low=3e-4, high=4e-4)
    (slope,) = torch.autograd.grad(objective.sum(), logp)
    assert_equals(objective, golden("gspo.obj_eps3e-4_4e-4_A+1-1"))
    share = -golden("gspo.s")[1] / 2
    assert_equals(slope, [[0.0, 0.0, 0.0], [share, share, 0.0]])


def test_the_sequence_ratio_does_not_grow_with_length() -> None:
    gaps, mask = torch.full((1, 500), 0.01, dtype=torch.float64), torch.ones(1, 500, dtype=torch.bool)
    log_ratios = log_ratio(gaps, torch.zeros_like(gaps), mask)
    assert_equals(sequence_ratio(log_ratios, mask)[0, 0], math.exp(0.01))
    assert_equals(log_ratios.sum().exp(), math.exp(5.0), tolerance=1e-10)


def test_an_empty_completion_has_ratio_one() -> None:
    nothing = torch.full((1, 3), float("nan"))
    mask = torch.zeros(1, 3, dtype=torch.bool)
    log_ratios = log_ratio(nothing, nothing, mask)
    assert torch.equal(sequence_ratio(log_ratios, mask), torch.ones(1, 3))
    assert torch.equal(token_ratio(log_ratios), torch.ones(1, 3))


def test_equal_log_probabilities_give_ratio_exactly_one() -> None:
    logp = -torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) * 30
    mask = torch.ones(5, 7, dtype=torch.bool)
    log_ratios = log_ratio(logp, logp.clone(), mask)
    assert torch.equal(token_ratio(log_ratios), torch.ones(5, 7))
    assert torch.equal(sequence_ratio(log_ratios, mask), torch.ones(5, 7))


@pytest.mark.parametrize(("gap", "bound"), [(1e4, 20.0), (-1e4, -20.0)])
def test_impossible_tokens_stay_finite_in_single_precision(gap: float, bound: float) -> None:
    logp, old = torch.tensor([[min(gap, 0.0)]]), torch.tensor([[min(-gap, 0.0)]])
    log_ratios = log_ratio(logp, old, torch.ones(1, 1, dtype=torch.bool))
    assert log_ratios.tolist() == [[bound]]
    assert torch.isfinite(token_ratio(log_ratios)).all()


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_padding_sends_neither_value_nor_gradient_and_the_behaviour_policy_gets_none(level: str) -> None:
    def objective(logp: Tensor, old: Tensor) -> Tensor:
        log_ratios = log_ratio(logp, old, MASK)
        ratios = token_ratio(log_ratios) if level == "token" else sequence_ratio(log_ratios, MASK)
        return torch.where(MASK, ratios, torch.zeros_like(ratios)).sum()

    clean = torch.tensor([[-1.0, -2.0, -0.5], [-0.3, -0.2, 0.0]], dtype=torch.float64)
    behaviour = clean - torch.tensor([[0.1, -0.2, 0.3], [0.2, 0.1, 0.0]], dtype=torch.float64)
    results = []
    for poison in (0.0, float("nan"), float("inf")):
        logp = torch.where(MASK, clean, torch.full_like(clean, poison)).requires_grad_()
        old = torch.where(MASK, behaviour, torch.full_like(clean, poison)).requires_grad_()
        value = objective(logp, old)
        slopes = torch.autograd.grad(value, [logp, old], allow_unused=True)
        assert slopes[1] is None
        results.append((value.detach(), slopes[0]))
    for value, slope in results[1:]:
        assert torch.equal(value, results[0][0])
        assert torch.equal(slope, results[0][1])

"""Reductions over step-global counts: worked examples, accumulation, empty rows, padding."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals, both_precisions
from torch import Tensor

from maxent_grpo.objective.reduction import (
    StepCounts,
    constant_coefficients,
    reduce_tokens,
    sequence_coefficients,
    token_coefficients,
)
from maxent_grpo.objective.surrogate import clipped_objective

LENGTHS = torch.tensor(golden("agg.inputs")["lengths"])
MASK = torch.arange(4) < LENGTHS.unsqueeze(-1)
COUNTS = StepCounts(sequences=4, tokens=6, groups=1)
REDUCTIONS: dict[str, Callable[[Tensor, StepCounts], Tensor]] = {
    "grpo": sequence_coefficients,
    "token": token_coefficients,
    "dr": partial(constant_coefficients, max_length=4),
}


def token_losses(dtype: torch.dtype) -> Tensor:
    inputs = golden("agg.inputs")
    ratios = torch.tensor(inputs["ratios"], dtype=dtype)
    advantages = torch.tensor(inputs["adv"], dtype=dtype).unsqueeze(-1).expand_as(ratios)
    return -clipped_objective(ratios, advantages, low=inputs["eps"], high=inputs["eps"])


def reduced(values: Tensor, rows: slice, counts: StepCounts, rule: str) -> Tensor:
    return reduce_tokens(values[rows], MASK[rows], REDUCTIONS[rule](LENGTHS[rows], counts))


@both_precisions
@pytest.mark.parametrize("rule", REDUCTIONS)
def test_reductions_match_the_worked_examples(rule: str, dtype: torch.dtype) -> None:
    values = token_losses(dtype)
    assert_equals(torch.where(MASK, values, 0.0), golden("agg.token_loss"))
    assert_equals(reduced(values, slice(0, 4), COUNTS, rule), golden(f"agg.{rule}"))


@both_precisions
def test_an_empty_completion_counts_as_a_sequence(dtype: torch.dtype) -> None:
    values = token_losses(dtype)
    without = COUNTS._replace(sequences=3)
    assert_equals(reduced(values, slice(0, 4), without, "grpo"), golden("agg.grpo_nonempty"))
    assert golden("agg.grpo") != pytest.approx(golden("agg.grpo_nonempty"), abs=1e-3)


@both_precisions
@pytest.mark.parametrize("rule", REDUCTIONS)
@pytest.mark.parametrize("cuts", [(2,), (1,), (3,), (1, 2, 3), (1, 3)])
def test_slices_add_up_to_the_whole_step(rule: str, cuts: tuple[int, ...], dtype: torch.dtype) -> None:
    values = token_losses(dtype)
    edges = [0, *cuts, 4]
    parts = [reduced(values, slice(a, b), COUNTS, rule) for a, b in pairwise(edges)]
    assert_equals(torch.stack(parts).sum(), golden(f"agg.{rule}"))


@both_precisions
def test_the_mean_of_two_slices_own_means_is_another_number(dtype: torch.dtype) -> None:
    values = token_losses(dtype)
    whole, naive, right = golden("accum.token_full_naive_correct")
    halves = [(slice(0, 2), 5.0), (slice(2, 4), 1.0)]
    own = [reduced(values, rows, StepCounts(2, tokens, 1), "token") for rows, tokens in halves]
    assert_equals(torch.stack(own).mean(), naive)
    together = [reduced(values, rows, COUNTS, "token") for rows, _ in halves]
    assert_equals(torch.stack(together).sum(), right)
    assert_equals(torch.stack(together).sum(), whole)


@both_precisions
def test_the_mean_of_uneven_slices_own_sequence_means_is_another_number(dtype: torch.dtype) -> None:
    values = token_losses(dtype)
    whole, naive, weighted = golden("accum.grpo_full_uneven1+3_naive_weighted")
    first = reduced(values, slice(0, 1), StepCounts(1, 2, 1), "grpo")
    rest = reduced(values, slice(1, 4), StepCounts(3, 4, 1), "grpo")
    assert_equals((first + rest) / 2, naive)
    assert_equals((first + 3 * rest) / 4, weighted)
    assert_equals(reduced(values, slice(0, 4), COUNTS, "grpo"), whole)


@pytest.mark.parametrize("rule", REDUCTIONS)
def test_padding_may_hold_anything(rule: str) -> None:
    for poison in (float("nan"), float("inf")):
        values = torch.where(MASK, token_losses(torch.float64), torch.full((4, 4), poison, dtype=torch.float64))
        values.requires_grad_()
        total = reduced(values, slice(0, 4), COUNTS, rule)
        (slope,) = torch.autograd.grad(total, values)
        assert_equals(total, golden(f"agg.{rule}"))
        assert torch.equal(slope == 0, ~MASK)


@pytest.mark.parametrize("rule", REDUCTIONS)
def test_a_step_without_tokens_reduces_to_zero(rule: str) -> None:
    values = torch.full((2, 3), float("nan"), requires_grad=True)
    lengths = torch.zeros(2, dtype=torch.long)
    coefficients = REDUCTIONS[rule](lengths, StepCounts(0, 0, 0))
    total = reduce_tokens(values, torch.zeros(2, 3, dtype=torch.bool), coefficients)
    (slope,) = torch.autograd.grad(total, values)
    assert total.item() == 0.0
    assert torch.isfinite(coefficients).all()
    assert torch.equal(slope, torch.zeros(2, 3))

"""Losses of whole groups: slopes against autograd, worked examples, limits, and the expected gradient at the optimum."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from support.golden import golden
from support.numbers import assert_equals, everything_valid
from support.properties import Group, groups, quick, temperatures
from torch import Tensor

from maxent_grpo.objective.advantages import centred_advantages
from maxent_grpo.objective.group_losses import (
    centred,
    centred_likelihood,
    centred_residual_squares,
    conditional_cross_entropy,
    importance_likelihood,
    soft_utilities,
)
from maxent_grpo.objective.weights import (
    ListwiseTerm,
    listwise_cross_entropy,
    masked_log_softmax,
    maxent_log_weights,
    utility_log_q,
)

TAU, BETA = 0.5, 0.3


def target(group: Group, tau: float = TAU, beta: float = BETA) -> Tensor:
    valid = everything_valid(group.utilities)
    log_q = utility_log_q(group.utilities, valid, temperature=1.0, epsilon=0.0)
    return maxent_log_weights(log_q, group.reference, valid, tau=tau, beta=beta)


LOSSES: dict[str, Callable[[Group, Tensor, Tensor], ListwiseTerm]] = {
    "cross_entropy": lambda group, scores, valid: listwise_cross_entropy(target(group), scores, valid),
    "centred": lambda group, scores, valid: centred_likelihood(target(group), scores, valid, denominator=TAU + BETA),
    "importance": lambda group, scores, valid: importance_likelihood(
        target(group), scores, valid, scores.detach() - 0.5 * group.reference
    ),
    "conditional": lambda group, scores, valid: conditional_cross_entropy(group.utilities > 0, scores, valid),
    "squares": lambda group, scores, valid: centred_residual_squares(
        group.utilities, scores, valid, group.reference, tau=TAU, beta=BETA, q_temperature=1.0
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_slope_is_the_gradient_of_the_value(name: str) -> None:
    @quick
    @given(groups())
    def check(group: Group) -> None:
        scores = group.scores.clone().requires_grad_()
        valid = everything_valid(scores)
        term = LOSSES[name](group, scores, valid)
        # value and slope are of one function, so autograd through the value must give the slope
        (gradient,) = torch.autograd.grad(term.value.sum(), scores, allow_unused=True)
        found = torch.zeros_like(scores) if gradient is None else gradient
        torch.testing.assert_close(found, term.coefficient.detach(), rtol=1e-9, atol=1e-9)

    check()


@pytest.mark.parametrize("name", LOSSES)
def test_order_does_not_matter_and_absent_completions_have_no_slope(name: str) -> None:
    @quick
    @given(groups(smallest=3))
    def check(group: Group) -> None:
        valid = everything_valid(group.scores)
        order = torch.arange(group.scores.shape[1]).flip(0)
        moved = Group(*(part[:, order] for part in group))
        term, again = LOSSES[name](group, group.scores, valid), LOSSES[name](moved, moved.scores, valid)
        torch.testing.assert_close(again.coefficient, term.coefficient[:, order], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(again.value, term.value, rtol=1e-9, atol=1e-9)
        without = valid.clone()
        without[0, 0] = False
        assert LOSSES[name](group, group.scores, without).coefficient[0, 0] == 0

    check()


def test_the_squared_residuals_match_the_worked_example() -> None:
    utilities = torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    scores = torch.tensor([[-2.0, -2.5, -4.0, -3.0]], dtype=torch.float64)
    reference = torch.tensor([[-1.5, -2.0, -4.5, -2.0]], dtype=torch.float64)
    term = centred_residual_squares(
        utilities, scores, everything_valid(scores), reference, tau=0.0, beta=0.5, q_temperature=1.0
    )
    assert_equals(term.value, [golden("gvpo.loss_half_sum_sq")])
    assert_equals(term.coefficient[0], golden("gvpo.grad_scores"))


@quick
@given(groups())
def test_at_a_high_temperature_the_centred_likelihood_is_dr_grpo(group: Group) -> None:
    valid = everything_valid(group.utilities)
    tau = 1e6
    term = centred_likelihood(target(group, tau=tau, beta=0.0), group.scores, valid, denominator=tau)
    advantages = centred_advantages(group.utilities, valid)
    torch.testing.assert_close(-term.coefficient * group.scores.shape[1], advantages, rtol=1e-5, atol=1e-5)


def test_a_single_right_answer_is_left_alone_by_the_conditional_term() -> None:
    right = torch.tensor([[True, False, False], [False, False, False]])
    term = conditional_cross_entropy(right, torch.randn(2, 3), everything_valid(right))
    assert not term.value.any()
    assert not term.coefficient.any()


@quick
@given(groups(), temperatures)
def test_soft_utilities_and_squared_residuals_pull_the_same_way(group: Group, tau: float) -> None:
    valid = everything_valid(group.scores)
    soft = soft_utilities(group.utilities, group.scores, group.reference, tau=tau, beta=BETA, q_temperature=1.0)
    term = centred_residual_squares(
        group.utilities, group.scores, valid, group.reference, tau=tau, beta=BETA, q_temperature=1.0
    )
    torch.testing.assert_close(term.coefficient, -(tau + BETA) * centred(soft, valid), rtol=1e-8, atol=1e-8)


NUM_OUTCOMES, GROUP = 5, 3
REWARD = torch.tensor([1.0, 1.0, 0.0, 0.25, 0.0], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([0.4, -1.0, 0.8, 0.0, -0.3], dtype=torch.float64), 0)
OPTIMUM = torch.softmax((REWARD + BETA * REFERENCE) / (TAU + BETA), 0)


def expected_slope(name: str, policy: Tensor, sampler: Tensor) -> Tensor:
    """Exact expected gradient on the logits of a tabular policy, over all groups that the sampler can draw."""
    drawn = torch.tensor(list(itertools.product(range(NUM_OUTCOMES), repeat=GROUP)))
    probability = sampler[drawn].prod(dim=-1, keepdim=True)
    valid = everything_valid(drawn)
    utilities, reference, scores = REWARD[drawn], REFERENCE[drawn], policy.log()[drawn]
    if name == "soft":
        soft = soft_utilities(utilities, scores, reference, tau=TAU, beta=BETA, q_temperature=1.0)
        slope = -centred(soft, valid) / GROUP
    elif name == "importance":
        log_q = utility_log_q(utilities, valid, temperature=1.0, epsilon=0.0)
        weights = maxent_log_weights(log_q, reference, valid, tau=TAU, beta=BETA)
        slope = importance_likelihood(weights, scores, valid, sampler.log()[drawn]).coefficient
    else:
        slope = LOSSES[name](Group(utilities, reference, scores), scores, valid).coefficient
    grad_log_policy = torch.nn.functional.one_hot(drawn, NUM_OUTCOMES).double() - policy
    return ((probability * slope).unsqueeze(-1) * grad_log_policy).sum(dim=(0, 1))


SAMPLER = torch.softmax(torch.tensor([0.0, 0.7, -0.4, 0.2, 0.1], dtype=torch.float64), 0)


@pytest.mark.parametrize(
    ("name", "sampler"),
    [
        ("cross_entropy", OPTIMUM),
        ("cross_entropy", SAMPLER),
        ("squares", OPTIMUM),
        ("squares", SAMPLER),
        ("soft", OPTIMUM),
        ("importance", OPTIMUM),
    ],
    ids=["cross_entropy", "cross_entropy-any-sampler", "squares", "squares-any-sampler", "soft", "importance"],
)
def test_the_expected_gradient_vanishes_at_the_closed_form_optimum(name: str, sampler: Tensor) -> None:
    assert float(expected_slope(name, OPTIMUM, sampler).abs().max()) < 1e-10


@pytest.mark.parametrize("name", ["cross_entropy", "squares", "soft", "importance", "centred"])
def test_elsewhere_the_expected_gradient_does_not_vanish(name: str) -> None:
    assert float(expected_slope(name, SAMPLER, SAMPLER).abs().max()) > 1e-3


def test_the_weighted_likelihood_alone_is_not_stationary_there() -> None:
    drift = expected_slope("centred", OPTIMUM, OPTIMUM)
    assert float(drift.abs().max()) > 1e-3


@pytest.mark.parametrize("name", LOSSES)
def test_a_single_completion_is_left_alone(name: str) -> None:
    lonely = Group(*(torch.tensor([[value]], dtype=torch.float64) for value in (1.0, -2.0, -3.0)))
    term = LOSSES[name](lonely, lonely.scores, everything_valid(lonely.scores))
    assert not term.coefficient.any()
    assert not term.value.any()


def test_importance_weights_undo_the_sampler() -> None:
    """As the group grows, the self-normalised slope tends to minus the target itself."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(SAMPLER, 200_000, replacement=True, generator=generator).unsqueeze(0)
    valid = everything_valid(drawn)
    log_q = utility_log_q(REWARD[drawn], valid, temperature=1.0, epsilon=0.0)
    weights = maxent_log_weights(log_q, REFERENCE[drawn], valid, tau=TAU, beta=BETA)
    term = importance_likelihood(weights, torch.zeros_like(weights), valid, SAMPLER.log()[drawn])
    mass = torch.zeros(NUM_OUTCOMES, dtype=torch.float64).index_add(0, drawn[0], -term.coefficient[0])
    assert float((mass - OPTIMUM).abs().max()) < 0.01
    assert masked_log_softmax(weights, valid).exp().sum() == pytest.approx(1.0)

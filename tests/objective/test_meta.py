"""Derivatives of the target weights, the convex dual and one-step meta-gradients: golden numbers and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden import golden
from support.numbers import assert_equals
from support.properties import Group, groups, quick
from torch import Tensor

from maxent_grpo.objective.meta import (
    TargetGroups,
    dual_gradient,
    dual_hessian,
    dual_potential,
    max_stable_step,
    one_step_gradient,
    relative_entropy_target,
    sensitivities,
    weight_derivatives,
    weight_divergence,
)
from maxent_grpo.objective.weights import (
    listwise_cross_entropy,
    masked_log_softmax,
    maxent_log_weights,
    utility_log_q,
    weight_entropy,
)

TAU, BETA = 0.5, 0.3
STEP = 1e-5
NUMERICAL = 1e-6
"""What a central difference of step 1e-5 leaves, relative to numbers of order 1."""

taus = st.floats(0.2, 5.0)
betas = st.sampled_from([0.0, 0.1, 0.7, 3.0])


def target_groups(utilities: Tensor, reference: Tensor, valid: Tensor | None = None) -> TargetGroups:
    valid = torch.ones_like(utilities, dtype=torch.bool) if valid is None else valid
    return TargetGroups(utility_log_q(utilities, valid, temperature=1.0, epsilon=1e-6), reference, valid)


def worked() -> TargetGroups:
    """The group of the worked examples."""
    utilities = torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    return target_groups(utilities, torch.tensor([[-1.0, -2.0, -0.5, -3.0]], dtype=torch.float64))


def log_weights(target: TargetGroups, tau: float, beta: float) -> Tensor:
    return maxent_log_weights(target.log_q, target.log_reference, target.valid, tau=tau, beta=beta)


def slope(value: Callable[[float], Tensor]) -> Tensor:
    """Central difference at 0."""
    return (value(STEP) - value(-STEP)) / (2 * STEP)


def assert_close(analytic: Tensor, numerical: Tensor) -> None:
    torch.testing.assert_close(analytic, numerical, rtol=NUMERICAL, atol=NUMERICAL)


def test_the_derivatives_match_the_worked_example() -> None:
    change, expected = (
        sensitivities(worked(), tau=TAU, beta=BETA),
        golden("meta.analytic_derivs_tau.5_beta.3"),
    )
    assert_equals(change.entropy_tau[0], expected["dH_dtau"])
    assert_equals(change.entropy_beta[0], expected["dH_dbeta"])
    assert_equals(change.kl_tau[0], expected["dKL_dtau"])
    assert_equals(change.kl_beta[0], expected["dKL_dbeta"])


def test_the_dual_matches_the_worked_example() -> None:
    target = torch.tensor([1.0], dtype=torch.float64)
    gradient = dual_gradient(worked(), tau=TAU, beta=BETA, target_entropy=target, target_kl=0.1)
    assert_equals(torch.cat([gradient.tau, gradient.beta]), golden("meta.H_minus_Hstar__Kstar_minus_KL"))
    # these two are themselves central differences of the potential
    assert_equals(torch.cat([gradient.tau, gradient.beta]), golden("meta.dual_grad_tau_beta"), tolerance=1e-9)
    hessian = dual_hessian(worked(), tau=TAU, beta=BETA)[0]
    assert_equals(hessian, golden("meta.dual_hessian"))
    assert max_stable_step(hessian) == pytest.approx(golden("meta.max_stable_step_2/lambda"), abs=1e-12)


def test_the_one_step_gradient_matches_the_worked_example() -> None:
    """The scores are the parameters, so that the inner product with score i is entry i of the outer gradient."""
    target, step = worked(), 0.1
    scores = torch.tensor([[-2.0, -2.5, -4.0, -3.0]], dtype=torch.float64)
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    term = listwise_cross_entropy(log_weights(target, TAU, BETA), scores, target.valid)
    after = torch.softmax(scores - step * term.coefficient, dim=-1)
    outer = -after * (rewards - (after * rewards).sum())
    derivative = weight_derivatives(target, tau=TAU, beta=BETA)
    actual = [one_step_gradient(part, outer, step_size=step, num_groups=1.0) for part in derivative]
    assert_equals(torch.tensor(actual, dtype=torch.float64), golden("meta.firstorder_tau_beta"))


@quick
@given(group=groups(), tau=taus, beta=betas)
def test_the_derivatives_are_those_of_finite_differences(group: Group, tau: float, beta: float) -> None:
    target = target_groups(group.utilities, group.reference)
    # the difference in beta is taken around a beta that leaves room below it
    beta += 2 * STEP

    def entropy(t: float, b: float) -> Tensor:
        return weight_entropy(log_weights(target, t, b))

    def divergence(t: float, b: float) -> Tensor:
        return weight_divergence(log_weights(target, t, b), target)

    change = sensitivities(target, tau=tau, beta=beta)
    assert_close(change.entropy_tau, slope(lambda h: entropy(tau + h, beta)))
    assert_close(change.entropy_beta, slope(lambda h: entropy(tau, beta + h)))
    assert_close(change.kl_tau, slope(lambda h: divergence(tau + h, beta)))
    assert_close(change.kl_beta, slope(lambda h: divergence(tau, beta + h)))
    derivative = weight_derivatives(target, tau=tau, beta=beta)
    assert_close(derivative.tau, slope(lambda h: log_weights(target, tau + h, beta).exp()))
    assert_close(derivative.beta, slope(lambda h: log_weights(target, tau, beta + h).exp()))
    assert_equals(derivative.tau.sum(), 0.0)
    assert_equals(derivative.beta.sum(), 0.0)


@quick
@given(group=groups(), tau=taus, beta=betas, fraction=st.floats(0.1, 0.9), target_kl=st.floats(0.0, 1.0))
def test_the_dual_gradient_is_the_slope_of_a_convex_potential(
    group: Group, tau: float, beta: float, fraction: float, target_kl: float
) -> None:
    target = target_groups(group.utilities, group.reference)
    entropy = relative_entropy_target(target, fraction)
    beta += 2 * STEP

    def potential(t: float, b: float) -> Tensor:
        return dual_potential(target, tau=t, beta=b, target_entropy=entropy, target_kl=target_kl)

    gradient = dual_gradient(target, tau=tau, beta=beta, target_entropy=entropy, target_kl=target_kl)
    assert_close(gradient.tau, slope(lambda h: potential(tau + h, beta)))
    assert_close(gradient.beta, slope(lambda h: potential(tau, beta + h)))
    hessian = dual_hessian(target, tau=tau, beta=beta)[0]
    assert_equals(hessian, hessian.T)
    assert float(torch.linalg.eigvalsh(hessian).min()) >= -1e-12
    # along the chord to any other point the potential stays below the chord
    middle = potential(0.5 * (tau + 1.3), 0.5 * (beta + 0.4))
    assert float(middle) <= float(0.5 * (potential(tau, beta) + potential(1.3, 0.4))) + 1e-12


@quick
@given(group=groups(smallest=3), tau=taus, beta=betas)
def test_masked_completions_contribute_nothing(group: Group, tau: float, beta: float) -> None:
    valid = torch.ones_like(group.utilities, dtype=torch.bool)
    valid[0, 1] = False
    poison = torch.tensor(float("nan"), dtype=torch.float64)
    kept = [n for n in range(valid.shape[1]) if n != 1]
    masked = target_groups(
        torch.where(valid, group.utilities, poison), torch.where(valid, group.reference, poison), valid
    )
    alone = target_groups(group.utilities[:, kept], group.reference[:, kept])
    for whole, part in zip(
        sensitivities(masked, tau=tau, beta=beta), sensitivities(alone, tau=tau, beta=beta), strict=True
    ):
        assert_equals(whole, part)
    for whole, part in zip(
        weight_derivatives(masked, tau=tau, beta=beta), weight_derivatives(alone, tau=tau, beta=beta), strict=True
    ):
        assert_equals(whole[:, kept], part)
        assert float(whole[0, 1]) == 0.0
    assert_equals(relative_entropy_target(masked, 0.4), relative_entropy_target(alone, 0.4))
    potentials = [
        dual_potential(part, tau=tau, beta=beta, target_entropy=relative_entropy_target(part, 0.4), target_kl=0.1)
        for part in (masked, alone)
    ]
    assert_equals(*potentials)


def test_a_group_without_completions_has_no_derivative_and_does_not_disturb_the_others() -> None:
    one = worked()
    empty = TargetGroups(
        *(torch.cat([part, torch.full_like(part, fill)]) for part, fill in zip(one, (-torch.inf, 0, 0), strict=True))
    )
    assert_equals(sensitivities(empty, tau=TAU, beta=BETA).entropy_tau[1], 0.0)
    assert_equals(
        sensitivities(empty, tau=TAU, beta=BETA).entropy_tau[:1], sensitivities(one, tau=TAU, beta=BETA).entropy_tau
    )
    gradient = dual_gradient(
        empty, tau=TAU, beta=BETA, target_entropy=relative_entropy_target(empty, 0.5), target_kl=0.0
    )
    assert float(gradient.tau[1]) == float(gradient.beta[1]) == 0.0
    derivative = weight_derivatives(empty, tau=TAU, beta=BETA)
    assert not derivative.tau[1].any()
    inner = torch.full_like(derivative.tau, float("nan"))
    inner[0] = torch.arange(4, dtype=torch.float64)
    whole = one_step_gradient(derivative.tau, inner, step_size=0.1, num_groups=2.0)
    part = one_step_gradient(derivative.tau[:1], inner[:1], step_size=0.1, num_groups=1.0)
    assert whole == pytest.approx(part / 2, abs=1e-15)


def test_the_relative_target_lies_between_the_ties_and_the_whole_group() -> None:
    utilities = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.5], [1.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    target = target_groups(utilities, torch.zeros_like(utilities))
    count = torch.tensor([[2.0, 5.0], [1.0, 5.0]], dtype=torch.float64).log()
    for fraction in (0.0, 0.3, 1.0):
        assert_equals(relative_entropy_target(target, fraction), count[:, 0] + fraction * (count[:, 1] - count[:, 0]))
    for tau, end in ((1e-3, count[:, 0]), (1e6, count[:, 1])):
        assert_equals(weight_entropy(log_weights(target, tau, 0.0)), end, tolerance=1e-9)


def test_the_divergence_is_from_the_reference_over_the_group() -> None:
    target = worked()
    log_w, log_pi = log_weights(target, TAU, BETA), masked_log_softmax(target.log_reference, target.valid)
    assert_equals(weight_divergence(log_w, target), (log_w.exp() * (log_w - log_pi)).sum(dim=-1))
    assert_equals(weight_divergence(log_pi, target), [0.0])


def test_there_is_no_derivative_where_the_weights_are_constant() -> None:
    with pytest.raises(ValueError, match="tau \\+ beta = 0 is below 1e-08"):
        sensitivities(worked(), tau=0.0, beta=0.0)


def test_equal_weights_bound_no_step() -> None:
    assert max_stable_step(torch.zeros(2, 2, dtype=torch.float64)) == float("inf")

"""Derivatives of the target weights in tau and beta, the convex dual whose gradient is a target miss, and meta-gradients.

With eta_i = (log q_i + beta b_i) / kappa, b = log pi_ref over the group and kappa = tau + beta, the weights are w = softmax(eta).
The dual of maximising E_w[log q] subject to H(w) >= H* and KL(w || pi_ref) <= K* is

    g(tau, beta) = kappa log sum_i exp(eta_i) - tau H* + beta K*,

which is convex, with dg/dtau = H(w) - H* and dg/dbeta = K* - KL(w || pi_ref). Minimising g in tau is the temperature rule of
soft actor-critic (arXiv 1812.05905). Meta-gradients through one update follow arXiv 1805.09801: w enters the listwise
gradient linearly, so that no second derivative of the policy is needed.

Groups are rows; completions that take no part are masked and contribute nothing. A row without any has entropy 0, divergence 0
and derivatives 0. kappa must be above ``DEGENERATE_DENOMINATOR``, below which the weights are constant. Use double precision.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxent_grpo.objective.weights import (
    DEGENERATE_DENOMINATOR,
    group_divergence,
    masked_log_softmax,
    maxent_log_weights,
    weight_entropy,
)


class TargetGroups(NamedTuple):
    """What the weights of some groups are made of."""

    log_q: Float[Tensor, "prompts group"]
    """Log of the utility distribution [nats]; a constant per group shifts the potential and nothing else."""
    log_reference: Float[Tensor, "prompts group"]
    """Reference score of each completion [nats]; normalised over the group here."""
    valid: Bool[Tensor, "prompts group"]
    """Completions that take part."""


class Sensitivities(NamedTuple):
    """How entropy and divergence of each group's weights answer to tau and beta."""

    entropy_tau: Float[Tensor, " prompts"]
    """dH/dtau = Var(eta) / kappa, never negative."""
    entropy_beta: Float[Tensor, " prompts"]
    """dH/dbeta = -Cov(eta, b - eta) / kappa."""
    kl_tau: Float[Tensor, " prompts"]
    """dKL/dtau = -Cov(eta, eta - b) / kappa = -dH/dbeta."""
    kl_beta: Float[Tensor, " prompts"]
    """dKL/dbeta = -Var(eta - b) / kappa, never positive."""


class WeightDerivatives(NamedTuple):
    """dw_i/dtau and dw_i/dbeta; each sums to 0 over a group."""

    tau: Float[Tensor, "prompts group"]
    beta: Float[Tensor, "prompts group"]


class DualGradient(NamedTuple):
    """Gradient of the dual potential of each group."""

    tau: Float[Tensor, " prompts"]
    """H(w) - H* [nats]."""
    beta: Float[Tensor, " prompts"]
    """K* - KL(w || pi_ref) [nats]."""


def dual_potential(
    groups: TargetGroups,
    *,
    tau: float,
    beta: float,
    target_entropy: Float[Tensor, " prompts"],
    target_kl: float,
) -> Float[Tensor, " prompts"]:
    """g(tau, beta) = kappa log Z - tau H* + beta K* of each group [nats]."""
    kappa = _kappa(tau, beta)
    eta, _ = _tilt(groups, tau, beta)
    blocked = eta.masked_fill(~groups.valid, -torch.inf)
    some = groups.valid.any(dim=-1)
    log_z = torch.where(some, torch.logsumexp(torch.where(some.unsqueeze(-1), blocked, 0.0), dim=-1), 0.0)
    return kappa * log_z - tau * target_entropy + beta * target_kl


def dual_gradient(
    groups: TargetGroups,
    *,
    tau: float,
    beta: float,
    target_entropy: Float[Tensor, " prompts"],
    target_kl: float,
) -> DualGradient:
    """The gradient of ``dual_potential``: by how much the weights miss their targets."""
    log_weights = _log_weights(groups, tau, beta)
    return DualGradient(
        weight_entropy(log_weights) - target_entropy, target_kl - weight_divergence(log_weights, groups)
    )


def dual_hessian(groups: TargetGroups, *, tau: float, beta: float) -> Float[Tensor, "prompts two two"]:
    """Second derivatives of the dual potential: Cov_w[(eta, eta - b)] / kappa, positive semi-definite."""
    change = sensitivities(groups, tau=tau, beta=beta)
    rows = [change.entropy_tau, change.entropy_beta, -change.kl_tau, -change.kl_beta]
    return torch.stack(rows, dim=-1).view(-1, 2, 2)


def max_stable_step(hessian: Float[Tensor, "two two"]) -> float:
    """The step size 2 / lambda_max from which on plain gradient descent on the dual no longer converges."""
    first, mixed, second = float(hessian[0, 0]), float(hessian[0, 1]), float(hessian[1, 1])
    largest = 0.5 * (first + second) + math.hypot(0.5 * (first - second), mixed)
    return 2.0 / largest if largest > 0 else math.inf


def sensitivities(groups: TargetGroups, *, tau: float, beta: float) -> Sensitivities:
    """Derivatives of H(w) and KL(w || pi_ref) with respect to tau and beta."""
    kappa = _kappa(tau, beta)
    eta, reference = _tilt(groups, tau, beta)
    weights = _log_weights(groups, tau, beta).exp()
    centred_eta, centred_gap = _centred(weights, eta), _centred(weights, eta - reference)

    def covariance(left: Tensor, right: Tensor) -> Tensor:
        return (weights * left * right).sum(dim=-1) / kappa

    mixed = covariance(centred_eta, centred_gap)
    return Sensitivities(covariance(centred_eta, centred_eta), mixed, -mixed, -covariance(centred_gap, centred_gap))


def weight_derivatives(groups: TargetGroups, *, tau: float, beta: float) -> WeightDerivatives:
    """dw_i/dtau = -w_i (eta_i - E_w eta) / kappa and dw_i/dbeta = w_i ((b - eta)_i - E_w[b - eta]) / kappa."""
    kappa = _kappa(tau, beta)
    eta, reference = _tilt(groups, tau, beta)
    weights = _log_weights(groups, tau, beta).exp()
    return WeightDerivatives(
        -weights * _centred(weights, eta) / kappa, weights * _centred(weights, reference - eta) / kappa
    )


def weight_divergence(log_weights: Float[Tensor, "prompts group"], groups: TargetGroups) -> Float[Tensor, " prompts"]:
    """KL(w || pi_ref) over each group, pi_ref normalised over it [nats]."""
    return group_divergence(log_weights, masked_log_softmax(groups.log_reference, groups.valid))


def relative_entropy_target(groups: TargetGroups, fraction: float) -> Float[Tensor, " prompts"]:
    """H* = log c + f (log n - log c) of each group [nats]: n completions take part, c of them have the largest q.

    Without a reference, H(w) runs from log c to log n as tau grows, so that every f in (0, 1) can be reached.
    """
    best = groups.log_q.masked_fill(~groups.valid, -torch.inf)
    ties = groups.valid & (best >= best.amax(dim=-1, keepdim=True))
    most = groups.valid.sum(dim=-1).clamp(min=1).to(groups.log_q.dtype).log()
    least = ties.sum(dim=-1).clamp(min=1).to(groups.log_q.dtype).log()
    return least + fraction * (most - least)


def one_step_gradient(
    derivative: Float[Tensor, "prompts group"],
    inner_products: Float[Tensor, "prompts group"],
    *,
    step_size: float,
    num_groups: float,
) -> float:
    """dM/dphi = a sum_x sum_i (dw_i/dphi) <grad s_i, grad M> / N_grp after theta' = theta - a grad L(theta; phi).

    Args:
        derivative: dw_i/dphi, 0 where a completion takes no part.
        inner_products: <grad_theta s_i(theta), grad M(theta')> of each completion's score.
        step_size: a, times the coefficient of the listwise term in the loss.
        num_groups: N_grp, the groups of the whole step.
    """
    taken = derivative != 0
    return step_size / num_groups * float((derivative * inner_products.masked_fill(~taken, 0.0)).sum())


def _kappa(tau: float, beta: float) -> float:
    if not tau + beta >= DEGENERATE_DENOMINATOR:
        raise ValueError(
            f"tau + beta = {tau + beta:g} is below {DEGENERATE_DENOMINATOR:g}: the weights are constant there and have no derivative"
        )
    return tau + beta


def _tilt(groups: TargetGroups, tau: float, beta: float) -> tuple[Tensor, Tensor]:
    """eta and b over the valid completions, 0 elsewhere."""
    invalid = ~groups.valid
    reference = masked_log_softmax(groups.log_reference, groups.valid).masked_fill(invalid, 0.0)
    return (groups.log_q.masked_fill(invalid, 0.0) + beta * reference) / _kappa(tau, beta), reference


def _log_weights(groups: TargetGroups, tau: float, beta: float) -> Tensor:
    _kappa(tau, beta)
    return maxent_log_weights(groups.log_q, groups.log_reference, groups.valid, tau=tau, beta=beta)


def _centred(weights: Tensor, values: Tensor) -> Tensor:
    """values - E_w[values] of each group."""
    return values - (weights * values).sum(dim=-1, keepdim=True)

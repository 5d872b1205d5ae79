"""The maximum-entropy target over a group, and the listwise loss that moves the policy towards it.

Per prompt, with q the utility distribution and pi_ref the reference, both over the group's valid completions, the target is

    w = argmax over the simplex of  E_w[log q] + tau H(w) - beta KL(w || pi_ref),

whose solution is w_i proportional to q_i^(1/(tau+beta)) * pi_ref_i^(beta/(tau+beta)). Everything here but the scores is
detached by contract; an invalid completion has weight and probability 0.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxent_grpo.objective.advantages import EQUAL_UTILITIES, group_spread

DEGENERATE_DENOMINATOR = 1e-8
"""Below this tau + beta the target is the uniform distribution on the most useful completions (exact ties)."""


def masked_log_softmax(
    scores: Float[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"]
) -> Float[Tensor, "prompts group"]:
    """Log-softmax over the valid entries of each row; invalid entries are -inf, also in a row without a valid one."""
    # log_softmax shifts by the maximum before it sums: scores of -1e4 keep their differences in single precision
    blocked = scores.masked_fill(~valid, -torch.inf)
    defined = torch.where(valid.any(dim=-1, keepdim=True), blocked, torch.zeros_like(scores))
    return torch.log_softmax(defined, dim=-1).masked_fill(~valid, -torch.inf)


def utility_log_q(
    utilities: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    *,
    temperature: float,
    epsilon: float,
) -> Float[Tensor, "prompts group"]:
    """Log of the utility distribution: q = softmax(r / temperature), floored as (1 - K eps) q + eps.

    K is the number of valid completions and eps = min(epsilon, 1/K). The floor bounds every gap of log q by log(1/eps).
    Adding a constant to all utilities of a group changes nothing.
    """
    log_q = masked_log_softmax(utilities / temperature, valid)
    count = valid.sum(dim=-1, keepdim=True).clamp(min=1).to(log_q.dtype)
    floor = torch.minimum(torch.full_like(log_q[..., :1], epsilon), 1.0 / count)
    # in logs throughout: without a floor q itself may be smaller than any number
    floored = torch.logaddexp(torch.log1p(-count * floor) + log_q, floor.log())
    return torch.where(valid, floored, torch.full_like(log_q, -torch.inf))


def maxent_log_weights(
    log_q: Float[Tensor, "prompts group"],
    log_reference: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    *,
    tau: float,
    beta: float,
) -> Float[Tensor, "prompts group"]:
    """Log of the target weights: log w = (log q + beta log pi_ref) / (tau + beta) - log Z, Z over the group.

    Limits: tau -> inf is uniform, beta -> inf the reference renormalised, tau = 1 and beta = 0 is q, and tau + beta = 0
    is uniform on the arg-max set of q.

    Args:
        log_q: log of the utility distribution [nats]; a constant per group cancels.
        log_reference: sequence score under the reference [nats], in the same mode as the policy's score.
        valid: completions that take part.
        tau: weight of the entropy, >= 0.
        beta: weight of the divergence from the reference, >= 0.
    """
    denominator = tau + beta
    if denominator < DEGENERATE_DENOMINATOR:
        best = log_q.masked_fill(~valid, -torch.inf)
        ties = valid & (best >= best.amax(dim=-1, keepdim=True))
        return masked_log_softmax(torch.zeros_like(log_q), ties)
    exponent = log_q.masked_fill(~valid, 0.0) / denominator
    if beta > 0:  # the share of beta is at most 1, where beta times a score may be beyond all numbers
        exponent = exponent + log_reference.masked_fill(~valid, 0.0) / (1.0 + tau / beta)
    return masked_log_softmax(exponent, valid)


def weight_entropy(log_weights: Float[Tensor, "prompts group"]) -> Float[Tensor, " prompts"]:
    """Entropy of each group's weights, H(w) = -sum w log w [nats]; 0 log 0 = 0. exp(H) is the effective group size."""
    finite = torch.isfinite(log_weights)
    safe = log_weights.masked_fill(~finite, 0.0)
    return -torch.where(finite, safe.exp() * safe, torch.zeros_like(safe)).sum(dim=-1)


def group_divergence(
    log_weights: Float[Tensor, "prompts group"], log_p: Float[Tensor, "prompts group"]
) -> Float[Tensor, " prompts"]:
    """KL(w || p) = sum w (log w - log p) of each group [nats], over its completions with weight; 0 log 0 = 0."""
    taken = torch.isfinite(log_weights)
    gap = log_weights.masked_fill(~taken, 0.0) - log_p.masked_fill(~taken, 0.0)
    return torch.where(taken, log_weights.exp() * gap, torch.zeros_like(gap)).sum(dim=-1)


def informative_groups(
    utilities: Float[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"]
) -> Bool[Tensor, " prompts"]:
    """Groups with at least two valid completions that differ in utility; in any other no tau changes the weights."""
    return group_spread(utilities, valid) > EQUAL_UTILITIES


def variational_objective(
    log_weights: Float[Tensor, "prompts group"],
    log_q: Float[Tensor, "prompts group"],
    log_reference: Float[Tensor, "prompts group"],
    *,
    tau: float,
    beta: float,
) -> Float[Tensor, " prompts"]:
    """F(w) = E_w[log q] + tau H(w) - beta KL(w || pi_ref), the objective whose maximiser are the target weights."""
    weights = log_weights.exp()
    taken = weights > 0
    energy = torch.where(taken, weights * log_q.masked_fill(~taken, 0.0), torch.zeros_like(weights)).sum(dim=-1)
    cross = torch.where(taken, weights * log_reference.masked_fill(~taken, 0.0), torch.zeros_like(weights)).sum(dim=-1)
    entropy = weight_entropy(log_weights)
    return energy + tau * entropy + beta * (entropy + cross)


def listwise_groups(
    utilities: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    right: Bool[Tensor, "prompts group"],
    *,
    keep_right: bool,
    keep_wrong: bool,
) -> Bool[Tensor, " prompts"]:
    """Groups that take part in the listwise term: those with at least one valid completion, neutral ones as asked.

    A group is neutral when its valid utilities are equal: every weight is then the reference's (or uniform), a pull that
    carries no reward. All-right groups equalise the right answers, all-wrong ones flatten the wrong.
    """
    neutral = group_spread(utilities, valid) <= EQUAL_UTILITIES
    all_right = (right | ~valid).all(dim=-1)
    wanted = torch.where(all_right, torch.full_like(all_right, keep_right), torch.full_like(all_right, keep_wrong))
    return valid.any(dim=-1) & (~neutral | wanted)


class ListwiseTerm(NamedTuple):
    """Value and gradient of a listwise loss, which is a function of the scores of one whole group."""

    value: Float[Tensor, " prompts"]
    """Loss of each group [nats]; 0 for a group that does not take part."""
    coefficient: Float[Tensor, "prompts group"]
    """dL/ds_i of each completion's score; 0 where it does not take part."""


def listwise_cross_entropy(
    log_weights: Float[Tensor, "prompts group"],
    scores: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
) -> ListwiseTerm:
    """Cross-entropy from the target to the policy over the group: L = -sum w_i log p_i, p = softmax(scores).

    dL/ds_i = p_i - w_i, which sums to zero over a group, so that the fixed point is pi proportional to
    exp(r / T) * pi_ref^(beta/(tau+beta)) for every group size and no importance weights are needed. A single valid
    completion has w = p = 1 and gradient 0.

    Args:
        log_weights: log w, detached; -inf where a completion has no weight.
        scores: sequence scores s_i of the policy [nats]. Detached scores give the coefficients to back-propagate
            c_i * s_i in any portions, which is the same gradient.
        valid: completions that take part.
    """
    log_p = masked_log_softmax(scores, valid)
    weights = torch.where(valid, log_weights.exp(), torch.zeros_like(log_weights))
    probabilities = log_p.exp()
    value = -(weights * log_p.masked_fill(~valid, 0.0)).sum(dim=-1)
    return ListwiseTerm(value, torch.where(valid, probabilities - weights, torch.zeros_like(scores)))

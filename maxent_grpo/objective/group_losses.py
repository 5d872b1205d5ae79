"""Losses of whole groups: functions of the sequence scores s of a group, given as value and slope dL/ds_i.

Back-propagating slope_i * s_i in any portions is the gradient of the whole. The slopes are computed from detached scores;
weights, references and utilities are detached by contract, and a completion that takes no part has slope 0. The
cross-entropy to the maximum-entropy target stands in ``weights``.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxent_grpo.objective.weights import ListwiseTerm, masked_log_softmax


def centred_likelihood(
    log_weights: Float[Tensor, "prompts group"],
    scores: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    *,
    denominator: float,
) -> ListwiseTerm:
    """Weighted log-likelihood against the uniform weights: L = -kappa sum (w_i - 1/n) s_i, kappa = tau + beta.

    As tau -> inf, n kappa (w_i - 1/n) tends to r_i - mean(r), so the limit is Dr.GRPO's policy gradient. There is no
    restoring force: the slope does not depend on the policy. A single valid completion has slope 0, and so, exactly, has
    a group of equal weights: the comparison is made on log w, because exp(-log n) need not round to 1/n.
    """
    count = valid.sum(dim=-1, keepdim=True).clamp(min=1).to(scores.dtype)
    weights = torch.where(valid, log_weights.exp(), torch.zeros_like(log_weights))
    highest = log_weights.masked_fill(~valid, -torch.inf).amax(dim=-1, keepdim=True)
    lowest = log_weights.masked_fill(~valid, torch.inf).amin(dim=-1, keepdim=True)
    excess = torch.where(valid & (highest > lowest), weights - 1.0 / count, torch.zeros_like(weights))
    return _linear(-denominator * excess, scores, valid)


def importance_likelihood(
    log_weights: Float[Tensor, "prompts group"],
    scores: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    behaviour_scores: Float[Tensor, "prompts group"],
) -> ListwiseTerm:
    """Weighted log-likelihood with self-normalised importance weights: L = -sum v_i s_i, v proportional to w_i / mu(y_i).

    mu is the behaviour policy, log mu its sequence score. The forward-KL projection on the target
    exp(r / T) pi_ref^(beta/kappa), with a bias of order 1/n from the normalisation over the group. A single completion
    has v = 1 whatever its reward: value and slope are then 0, as in every other group loss.
    """
    part = valid & (valid.sum(dim=-1, keepdim=True) >= 2)
    corrected = masked_log_softmax(log_weights.masked_fill(~valid, 0.0) - behaviour_scores, valid)
    return _linear(-torch.where(part, corrected.exp(), torch.zeros_like(corrected)), scores, valid)


def conditional_cross_entropy(
    right: Bool[Tensor, "prompts group"],
    scores: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
) -> ListwiseTerm:
    """Cross-entropy from the uniform distribution on the right completions to the policy restricted to them.

    L = -(1/c) sum over right i of log p_i, p = softmax of s over the c right valid completions; dL/ds_i = p_i - 1/c on
    them and 0 elsewhere. It equalises right answers and leaves the mass of right against wrong to the policy term.
    Value and slope are 0 with fewer than two right completions.
    """
    part = right & valid
    several = part.sum(dim=-1, keepdim=True) >= 2
    part = part & several
    log_p = masked_log_softmax(scores, part)
    share = 1.0 / part.sum(dim=-1, keepdim=True).clamp(min=1).to(scores.dtype)
    value = -torch.where(part, share * log_p.masked_fill(~part, 0.0), torch.zeros_like(scores)).sum(dim=-1)
    return ListwiseTerm(value, torch.where(part, log_p.exp() - share, torch.zeros_like(scores)))


def centred_residual_squares(
    utilities: Float[Tensor, "prompts group"],
    scores: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    log_reference: Float[Tensor, "prompts group"],
    *,
    tau: float,
    beta: float,
    q_temperature: float,
) -> ListwiseTerm:
    """Least squares on the optimality condition: L = 1/2 sum e_i^2, dL/ds_i = kappa e_i, kappa = tau + beta.

    e is kappa s - beta s_ref - r / T_q, centred over the group's valid completions; it vanishes for every group exactly
    at pi proportional to exp(r / (T_q kappa)) pi_ref^(beta/kappa), whatever sampled the group. Source: GVPO,
    arXiv 2504.19599 (tau = 0 is the paper's form).
    """
    kappa = tau + beta
    residual = centred(kappa * scores - beta * log_reference - utilities / q_temperature, valid)
    return ListwiseTerm(0.5 * residual.square().sum(dim=-1), kappa * residual)


def soft_utilities(
    utilities: Float[Tensor, "prompts group"],
    behaviour_scores: Float[Tensor, "prompts group"],
    log_reference: Float[Tensor, "prompts group"],
    *,
    tau: float,
    beta: float,
    q_temperature: float,
) -> Float[Tensor, "prompts group"]:
    """r / T_q - tau s + beta (s_ref - s): the reward of the entropy- and KL-regularised problem, at the sampling policy.

    The policy gradient on it (advantage: centred over the group) has the listwise target as its fixed point. The score s
    of the behaviour policy is part of the reward and carries no gradient.
    """
    return utilities / q_temperature - tau * behaviour_scores + beta * (log_reference - behaviour_scores)


def centred(
    values: Float[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"]
) -> Float[Tensor, "prompts group"]:
    """Values minus their mean over the valid completions of the group; 0 at the others, whatever stands there."""
    known = values.masked_fill(~valid, 0.0)
    mean = known.sum(dim=-1, keepdim=True) / valid.sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.where(valid, known - mean, torch.zeros_like(known))


def _linear(
    slope: Float[Tensor, "prompts group"], scores: Float[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"]
) -> ListwiseTerm:
    return ListwiseTerm((slope * scores.masked_fill(~valid, 0.0)).sum(dim=-1), slope)

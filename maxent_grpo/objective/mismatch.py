"""Correction of the gap between the sampler's and the trainer's probabilities of the same tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxent_grpo.objective.ratios import log_ratio


def mismatch_weights(
    old_logp: Float[Tensor, "sequences tokens"],
    sampled_logp: Float[Tensor, "sequences tokens"],
    mask: Bool[Tensor, "sequences tokens"],
    *,
    mode: str,
    cap: float,
    floor: float,
) -> Float[Tensor, "sequences tokens"]:
    """Weight of each token's policy loss, from w = exp(log pi_old - log mu), detached.

    `token_truncate`: min(w, cap) (truncated importance sampling). `token_mask`: w inside [floor, cap], else 0 (masked
    importance sampling). `sequence_truncate` is min(w, cap) with the product over the completion, and `sequence_mask` is
    that product where it is at most `cap`, else 0: it has no floor, which the product of a long completion often
    falls below. `geometric_...` takes the geometric mean over the completion's tokens, whose scale does not depend on
    length, with the floor of the token modes. The KL term is not weighted.
    """
    weight = raw_mismatch(old_logp, sampled_logp, mask, mode=mode)
    if mode.endswith("truncate"):
        return weight.clamp(max=cap)
    inside = weight <= cap if mode.startswith("sequence") else (weight >= floor) & (weight <= cap)
    return torch.where(inside, weight, torch.zeros_like(weight))


def raw_mismatch(
    old_logp: Float[Tensor, "sequences tokens"],
    sampled_logp: Float[Tensor, "sequences tokens"],
    mask: Bool[Tensor, "sequences tokens"],
    *,
    mode: str,
) -> Float[Tensor, "sequences tokens"]:
    """w before it is capped or masked, at the mode's level: per token, their product, or their geometric mean."""
    gap = log_ratio(old_logp, sampled_logp, mask).detach()
    if mode.startswith("sequence"):
        gap = gap.sum(dim=-1, keepdim=True).clamp(-20.0, 20.0).expand_as(gap)
    if mode.startswith("geometric"):
        gap = (gap.sum(dim=-1, keepdim=True) / mask.sum(dim=-1, keepdim=True).clamp(min=1)).expand_as(gap)
    return gap.exp()

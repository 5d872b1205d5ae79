"""Credit: how the utilities of a group become advantages."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

EQUAL_UTILITIES = 1e-8
"""Utilities of a group whose spread is at most this are equal: their advantages are exactly zero."""

STD_EPSILON = 1e-4
"""Added to the group's standard deviation in GRPO; the value of TRL."""


def group_spread(
    utilities: Float[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"]
) -> Float[Tensor, " prompts"]:
    """Largest minus smallest utility among the valid completions of each group; 0 where fewer than two are valid."""
    high = utilities.masked_fill(~valid, -torch.inf).amax(dim=-1)
    low = utilities.masked_fill(~valid, torch.inf).amin(dim=-1)
    return torch.where(valid.sum(dim=-1) >= 2, high - low, torch.zeros_like(high))


def centred_advantages(
    utilities: Float[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"]
) -> Float[Tensor, "prompts group"]:
    """Utility relative to the group: A_i = r_i - mean of the group's valid r.

    Source: Dr.GRPO, arXiv 2503.20783. Equal utilities, a group of one and invalid completions give exactly 0: the
    comparison is made on the utilities, because r - mean(r) need not round to zero.
    """
    count = valid.sum(dim=-1, keepdim=True).clamp(min=1)
    known = utilities.masked_fill(~valid, 0.0)
    centred = known - known.sum(dim=-1, keepdim=True) / count
    informative = valid & (group_spread(utilities, valid) > EQUAL_UTILITIES).unsqueeze(-1)
    return torch.where(informative, centred, torch.zeros_like(centred))


def standardised_advantages(
    utilities: Float[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"], *, epsilon: float = STD_EPSILON
) -> Float[Tensor, "prompts group"]:
    """Utility in units of the group's spread: A_i = (r_i - mean) / (s + epsilon), s the sample deviation (n - 1).

    Source: GRPO, arXiv 2402.03300. The same zeros as ``centred_advantages``. Dividing by s gives a prompt with success
    probability p the weight 1 / sqrt(p (1 - p)).
    """
    centred = centred_advantages(utilities, valid)
    degrees = (valid.sum(dim=-1, keepdim=True) - 1).clamp(min=1)
    deviation = (centred.square().sum(dim=-1, keepdim=True) / degrees).sqrt()
    return centred / (deviation + epsilon)

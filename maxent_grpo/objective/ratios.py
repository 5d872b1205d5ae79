"""Importance ratios of the current to the behaviour policy."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to this before exp, so that one impossible token cannot overflow a step."""


def log_ratio(
    logp: Float[Tensor, "sequences tokens"],
    old_logp: Float[Tensor, "sequences tokens"],
    mask: Bool[Tensor, "sequences tokens"],
) -> Float[Tensor, "sequences tokens"]:
    """log pi - log pi_old per token [nats], 0 at masked places, whatever stands in the padding, and bounded.

    Gradient flows through ``logp`` only.
    """
    # the mask goes in before the subtraction: padding may hold NaN, and 0 * NaN is NaN in the backward pass
    zero = torch.zeros((), dtype=logp.dtype, device=logp.device)
    difference = torch.where(mask, logp, zero) - torch.where(mask, old_logp.detach(), zero)
    return difference.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def token_ratio(log_ratios: Float[Tensor, "sequences tokens"]) -> Float[Tensor, "sequences tokens"]:
    """rho_t = exp(log-ratio), one per token."""
    return log_ratios.exp()


def sequence_ratio(
    log_ratios: Float[Tensor, "sequences tokens"], mask: Bool[Tensor, "sequences tokens"]
) -> Float[Tensor, "sequences tokens"]:
    """s_i = exp(mean over the completion's tokens of the log-ratio), repeated at every token.

    Source: GSPO, arXiv 2507.18071. The length normalisation keeps the ratio's scale independent of length; an empty
    completion has ratio 1.
    """
    length = mask.sum(dim=-1, keepdim=True).clamp(min=1)
    return (log_ratios.sum(dim=-1, keepdim=True) / length).exp().expand_as(log_ratios)

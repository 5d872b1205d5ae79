"""Divergence of the policy from the reference, estimated per sampled token."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

EXPONENT_BOUND = 20.0
"""Bound of the exponent in k3."""

K3_BOUND = 10.0
"""Largest k3 of one token; beyond it the token's gradient is 0."""


def kl_k1(d: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens"]:
    """k1 = d, with d = log pi - log pi_ref: unbiased for KL(pi || pi_ref); as a loss its expected gradient is 0."""
    return d


def kl_k2(d: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens"]:
    """k2 = d^2 / 2: biased as a value, but as a loss its expected gradient is exactly that of KL(pi || pi_ref)."""
    return 0.5 * d.square()


def kl_k3(d: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens"]:
    """k3 = exp(-d) - 1 + d: unbiased, non-negative; as a loss on-policy it follows the forward KL(pi_ref || pi).

    Source: Schulman, "Approximating KL divergence". The exponent and the result are bounded.
    """
    return ((-d).clamp(-EXPONENT_BOUND, EXPONENT_BOUND).exp() - 1.0 + d).clamp(max=K3_BOUND)


KL_ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
"""The one table of estimators by name that are functions of d alone."""


def kl_k3_is(d: Float[Tensor, "*tokens"], ratio: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens"]:
    """rho k3, with gradient through rho too: as a loss it follows KL(pi || pi_ref), also for tokens of an older policy.

    d/dlog pi is rho (k3 + 1 - exp(-d)) = rho d, against 1 - exp(-d) of k3 alone; the two differ at rho = 1 as well.
    Source: DeepSeek-V3.2, arXiv 2512.02556.
    """
    return ratio * kl_k3(d)


def token_divergence(
    logp: Float[Tensor, "sequences tokens"],
    ref_logp: Float[Tensor, "sequences tokens"],
    mask: Bool[Tensor, "sequences tokens"],
) -> Float[Tensor, "sequences tokens"]:
    """d = log pi - log pi_ref per token [nats], 0 at masked places whatever stands in the padding.

    Gradient flows through ``logp`` only.
    """
    zero = torch.zeros((), dtype=logp.dtype, device=logp.device)
    return torch.where(mask, logp, zero) - torch.where(mask, ref_logp.detach(), zero)

"""The policy surrogate: what is maximised per token, and which tokens a clip stops."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def plain_objective(ratio: Float[Tensor, "*tokens"], advantage: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens"]:
    """J = ratio * A: the importance-weighted policy gradient without a clip. Gradient flows through ``ratio`` only."""
    return ratio * advantage.detach()


def clipped_objective(
    ratio: Float[Tensor, "*tokens"],
    advantage: Float[Tensor, "*tokens"],
    *,
    low: float,
    high: float,
    delta: float | None = None,
) -> Float[Tensor, "*tokens"]:
    """J = min(rho A, clip(rho, 1 - low, 1 + high) A), with rho capped at delta in the unclipped branch when given.

    Sources: PPO, arXiv 1707.06347; separate bounds, DAPO, arXiv 2503.14476; the cap, which bounds tokens with A < 0 and
    a large ratio, INTELLECT-2, arXiv 2505.07291. dJ/dlog pi is rho A inside the trust region and 0 outside, so at
    rho = 1 every variant is the plain policy gradient. Gradient flows through ``ratio`` only.
    """
    advantage = advantage.detach()
    unclipped = ratio if delta is None else ratio.clamp(max=delta)
    return torch.minimum(unclipped * advantage, ratio.clamp(1.0 - low, 1.0 + high) * advantage)


class ClippedTokens(NamedTuple):
    """Tokens whose gradient the clip removes, by side."""

    low: Bool[Tensor, "*tokens"]
    high: Bool[Tensor, "*tokens"]


def clipped_tokens(
    ratio: Float[Tensor, "*tokens"],
    advantage: Float[Tensor, "*tokens"],
    mask: Bool[Tensor, "*tokens"],
    *,
    low: float,
    high: float,
) -> ClippedTokens:
    """Sign-aware clip indicators: low where rho < 1 - low and A < 0, high where rho > 1 + high and A > 0."""
    return ClippedTokens(mask & (ratio < 1.0 - low) & (advantage < 0), mask & (ratio > 1.0 + high) & (advantage > 0))


def weighted_likelihood_objective(
    ratio: Float[Tensor, "*tokens"], logp: Float[Tensor, "*tokens"], advantage: Float[Tensor, "*tokens"], *, cap: float
) -> Float[Tensor, "*tokens"]:
    """J = sg(min(rho, cap)) A log pi: the importance weight is capped, and no token loses its gradient.

    Source: CISPO, arXiv 2506.13585. dJ/dlog pi = min(rho, cap) A, which is A at rho = 1. ``cap`` bounds the ratio itself
    (not its distance from 1). Gradient flows through ``logp`` only.
    """
    return ratio.detach().clamp(max=cap) * advantage.detach() * logp


def soft_gate_objective(
    ratio: Float[Tensor, "*tokens"],
    advantage: Float[Tensor, "*tokens"],
    *,
    positive_temperature: float,
    negative_temperature: float,
) -> Float[Tensor, "*tokens"]:
    """J = (4 / t) sigmoid(t (rho - 1)) A with t by the sign of A: a smooth gate in place of a clip.

    Source: SAPO, arXiv 2511.20347. dJ/dlog pi = 4 p (1 - p) rho A with p the sigmoid, which is A at rho = 1 and fades as
    the ratio leaves 1. Gradient flows through ``ratio`` only.
    """
    advantage = advantage.detach()
    temperature = torch.where(
        advantage > 0,
        torch.full_like(advantage, positive_temperature),
        torch.full_like(advantage, negative_temperature),
    )
    return 4.0 / temperature * torch.sigmoid(temperature * (ratio - 1.0)) * advantage

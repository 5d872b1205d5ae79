"""Which tokens of a step train, by statistics of the whole step: all of its slices, accumulation and processes.

Each function takes the tensors of a whole step and returns a mask; the caller gathers them before the first backward
pass, so that the choice does not depend on how the step is cut.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def token_covariance(
    logp: Float[Tensor, "sequences tokens"],
    advantage: Float[Tensor, "sequences tokens"],
    mask: Bool[Tensor, "sequences tokens"],
) -> Float[Tensor, "sequences tokens"]:
    """(A_t - mean A)(log pi_t - mean log pi), means over the masked tokens of the step; 0 elsewhere.

    Its mean is what drives the policy's entropy down at first order. It is two-sided: rare tokens of bad completions and
    likely tokens of good ones are both high. Source: arXiv 2505.22617, eq. 7.
    """
    count = mask.sum().clamp(min=1)
    known_logp, known_advantage = logp.detach().masked_fill(~mask, 0.0), advantage.detach().masked_fill(~mask, 0.0)
    product = (known_advantage - known_advantage.sum() / count) * (known_logp - known_logp.sum() / count)
    return torch.where(mask, product, torch.zeros_like(product))


def num_selected(mask: Bool[Tensor, "sequences tokens"], ratio: float) -> int:
    """max(1, floor(ratio * N_tok)): how many tokens a share of the step's trained tokens is."""
    return max(1, math.floor(ratio * int(mask.sum())))


def clipped_covariance_tokens(
    covariance: Float[Tensor, "sequences tokens"],
    eligible: Bool[Tensor, "sequences tokens"],
    priority: Float[Tensor, "sequences tokens"],
    *,
    number: int,
    low: float,
    high: float,
) -> Bool[Tensor, "sequences tokens"]:
    """Tokens to leave out: ``number`` at random among those with a covariance strictly between low and high.

    Source: Clip-Cov, arXiv 2505.22617. ``eligible`` are trained tokens that the clip does not stop already; the random
    choice is the ``number`` smallest ``priority`` values (uniform, drawn by the caller for each token of the step, which
    makes the choice the same however the step is cut). All candidates when there are fewer.
    """
    candidates = eligible & (covariance > low) & (covariance < high)
    return _first(priority.masked_fill(~candidates, torch.inf), candidates, number)


def largest_covariance_tokens(
    covariance: Float[Tensor, "sequences tokens"],
    mask: Bool[Tensor, "sequences tokens"],
    priority: Float[Tensor, "sequences tokens"],
    *,
    number: int,
) -> Bool[Tensor, "sequences tokens"]:
    """The ``number`` trained tokens with the largest covariance, which are held near the behaviour policy.

    Source: KL-Cov, arXiv 2505.22617. Of equal covariances the smaller ``priority`` comes first, so that the choice does
    not depend on the order of the rows; where no group carries a signal all covariances are 0.
    """
    by_priority = torch.argsort(priority.flatten(), stable=True)
    ordered = _first(
        (-covariance).masked_fill(~mask, torch.inf).flatten()[by_priority], mask.flatten()[by_priority], number
    )
    chosen = torch.zeros_like(ordered)
    chosen[by_priority] = ordered
    return chosen.view_as(mask)


def entropy_threshold(
    entropy: Float[Tensor, "sequences tokens"], mask: Bool[Tensor, "sequences tokens"], *, quantile: float
) -> Float[Tensor, ""]:
    """The given quantile of the token entropies of the step [nats], linearly interpolated; 0 without a token."""
    known = entropy.detach()[mask]
    if known.numel() == 0:
        return entropy.new_zeros(())
    ordered = known.sort().values
    place = quantile * (ordered.numel() - 1)
    below = math.floor(place)
    above = min(below + 1, ordered.numel() - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def high_entropy_tokens(
    entropy: Float[Tensor, "sequences tokens"], mask: Bool[Tensor, "sequences tokens"], *, quantile: float
) -> Bool[Tensor, "sequences tokens"]:
    """Trained tokens whose entropy reaches the quantile over the step's tokens (ties kept).

    Source: arXiv 2506.01939, with quantile 0.8: the top fifth of the tokens, where the policy forks.
    """
    return mask & (entropy.detach() >= entropy_threshold(entropy, mask, quantile=quantile))


def _first(
    order: Float[Tensor, "*tokens"], candidates: Bool[Tensor, "*tokens"], number: int
) -> Bool[Tensor, "*tokens"]:
    """The ``number`` candidates that come first in the order; ties by position."""
    chosen = torch.zeros_like(candidates).flatten()
    ranked = torch.argsort(order.flatten(), stable=True)[: min(number, int(candidates.sum()))]
    chosen[ranked] = True
    return chosen.view_as(candidates)

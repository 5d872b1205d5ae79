"""Credit: how the utilities of a group become advantages."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

EQUAL_UTILITIES = 1e-8
"""Utilities of a group whose spread is at most this are equal: their advantages are exactly zero."""

STD_EPSILON = 1e-4
"""Added to the group's standard deviation in GRPO; the value of TRL."""

WHITENING_EPSILON = 1e-8
"""Added to the token variance in REINFORCE++."""


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


def leave_one_out_advantages(
    utilities: Float[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"]
) -> Float[Tensor, "prompts group"]:
    """Utility against the mean of the others: A_i = r_i - mean of r_j over j != i = n/(n - 1) (r_i - mean).

    Source: RLOO, arXiv 2402.14740. Leaving the own sample out of the baseline removes the factor (n - 1)/n by which the
    group mean shrinks the expected gradient. The same zeros as ``centred_advantages``.
    """
    count = valid.sum(dim=-1, keepdim=True).to(utilities.dtype)
    return centred_advantages(utilities, valid) * (count / (count - 1).clamp(min=1))


def batch_standardised_advantages(
    utilities: Float[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"], *, epsilon: float = STD_EPSILON
) -> Float[Tensor, "prompts group"]:
    """Centred by the group, scaled by the batch: A_i = (r_i - group mean) / (s + epsilon), s over all valid r (n - 1).

    Source: Lite PPO, arXiv 2508.08221. One scale for all prompts keeps their relative weights. The same zeros as
    ``centred_advantages``.
    """
    known = utilities[valid]
    deviation = known.std(correction=1) if known.numel() > 1 else utilities.new_zeros(())
    return centred_advantages(utilities, valid) / (deviation + epsilon)


def whitened_advantages(
    utilities: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    lengths: Int[Tensor, "prompts group"],
) -> Float[Tensor, "prompts group"]:
    """Centred by the group, whitened over all tokens: A_i = (a_i - mean) / sqrt(var + 1e-8), a_i = r_i - group mean.

    Mean and (unbiased) variance count a_i once for each of the completion's T_i tokens. Source: REINFORCE++ with a group
    baseline, arXiv 2501.03262. A group of equal utilities does not in general get 0 here, because the token mean of the
    batch need not be 0; when all a_i of the batch are 0, so are the advantages.
    """
    centred = centred_advantages(utilities, valid)
    tokens = torch.where(valid, lengths, torch.zeros_like(lengths)).to(utilities.dtype)
    total = tokens.sum()
    if not bool(centred.any()) or float(total) < 2:
        return torch.zeros_like(centred)
    mean = (tokens * centred).sum() / total
    variance = (tokens * (centred - mean).square()).sum() / (total - 1)
    whitened = (centred - mean) / (variance + WHITENING_EPSILON).sqrt()
    return torch.where(valid, whitened, torch.zeros_like(whitened))


def pass_at_k_advantages(
    right: Bool[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"], *, k: int
) -> Float[Tensor, "prompts group"]:
    """Advantage of a completion when sets of k completions are rewarded for holding a right one; sums to 0 over a group.

    With n valid completions, c of them right: rho = 1 - C(n-c, k)/C(n, k), sigma = sqrt(rho (1 - rho)), a right one gets
    (1 - rho)/sigma, a wrong one (1 - rho - C(n-c-1, k-1)/C(n-1, k-1))/sigma; 0 where sigma = 0, also where n < k.
    Source: pass@k training, arXiv 2508.10751 (analytic form).
    """
    n, c = valid.sum(dim=-1).to(torch.float64), (right & valid).sum(dim=-1).to(torch.float64)
    missed = choose_ratio(n - c, n, k)  # C(n-c, k) / C(n, k) = 1 - rho
    wrong = missed - choose_ratio(n - c - 1, n - 1, k - 1)
    sigma = (missed * (1 - missed)).sqrt()
    informative = (sigma > 0) & (n >= k)
    scale = torch.where(informative, 1.0 / sigma.clamp(min=torch.finfo(sigma.dtype).tiny), torch.zeros_like(sigma))
    value = torch.where(right, (missed * scale).unsqueeze(-1), (wrong * scale).unsqueeze(-1))
    return torch.where(valid & informative.unsqueeze(-1), value, torch.zeros_like(value))


def choose_ratio(
    part: Float[Tensor, " prompts"], whole: Float[Tensor, " prompts"], k: int
) -> Float[Tensor, " prompts"]:
    """C(part, k) / C(whole, k) as the product over j < k of (part - j)/(whole - j), which cannot overflow; 0 if part < k."""
    ratio = torch.ones_like(whole)
    for j in range(k):
        ratio = ratio * (part - j).clamp(min=0) / (whole - j).clamp(min=1)
    return ratio

"""Utilities as the credit sees them: what a reward is worth given the rest of its group, or its length.

Keys are integers that name the canonical answer of a completion within its group; ``NO_KEY`` marks one that has none,
which counts as an answer of its own.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NO_KEY = -1
"""Key of a completion without a canonical answer."""


def key_counts(
    keys: Int[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"]
) -> Int[Tensor, "prompts group"]:
    """How many valid completions of the group share a completion's key, itself included; 1 without a key."""
    shared = (keys.unsqueeze(-1) == keys.unsqueeze(-2)) & valid.unsqueeze(-2)
    return torch.where(keys == NO_KEY, torch.ones_like(keys), shared.sum(dim=-1).clamp(min=1))


def uniqueness_utilities(
    utilities: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    keys: Int[Tensor, "prompts group"],
    *,
    power: float,
) -> Float[Tensor, "prompts group"]:
    """r_i / n_i^power for r_i > 0, n_i the number of valid completions of the group with the same answer.

    Source: uniqueness-aware rewards, arXiv 2601.08763. With power 1 every right answer of a group shares one reward
    among its completions, so that the utilities of equally rewarded answers are equalised; power 0 changes nothing.
    Rewards that are not positive stay as they are.
    """
    shared = utilities / key_counts(keys, valid).to(utilities.dtype).pow(power)
    return torch.where(valid & (utilities > 0), shared, utilities)


def unlikeliness_utilities(
    utilities: Float[Tensor, "prompts group"],
    valid: Bool[Tensor, "prompts group"],
    mean_logp: Float[Tensor, "prompts group"],
    *,
    discount: float,
) -> Float[Tensor, "prompts group"]:
    """r_i (1 - discount * rank_i / n): rank 0 is the least likely of the group's n valid completions.

    The rank is by the behaviour policy's mean token log-probability; completions that are equally likely share the mean
    of their ranks, so that the order within a group does not matter. Source: unlikeliness reward, arXiv 2506.02355.
    """
    below = (mean_logp.unsqueeze(-2) < mean_logp.unsqueeze(-1)) & valid.unsqueeze(-2)
    equal = (mean_logp.unsqueeze(-2) == mean_logp.unsqueeze(-1)) & valid.unsqueeze(-2)
    rank = below.sum(dim=-1) + 0.5 * (equal.sum(dim=-1) - 1).clamp(min=0)
    count = valid.sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.where(valid, utilities * (1.0 - discount * rank.to(utilities.dtype) / count), utilities)


def overlong_penalty(
    lengths: Int[Tensor, "prompts group"], *, limit: int, buffer: int, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "prompts group"]:
    """0 up to limit - buffer tokens, then linearly down to -1 at the limit, and -1 beyond it; added to the utility.

    Source: soft overlong punishment, DAPO, arXiv 2503.14476, eq. 13.
    """
    return ((limit - buffer - lengths).to(dtype) / buffer).clamp(min=-1.0, max=0.0)

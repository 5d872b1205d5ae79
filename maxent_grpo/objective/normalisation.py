"""Normalisation of utilities: the weighted sum of the reward terms, or every term by itself.

The mean that is taken away is always the group's; the deviation that divides is the group's or the batch's. A group whose
values are equal gives exactly 0, and what is not known takes no part in any mean or deviation.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxent_grpo.objective.advantages import batch_standardised_advantages, standardised_advantages


def normalised_sum(
    utilities: Float[Tensor, "prompts group"], valid: Bool[Tensor, "prompts group"], *, over_batch: bool
) -> Float[Tensor, "prompts group"]:
    """The utility in units of a deviation: (u_i - group mean) / (s + epsilon), s of the group or of all valid u.

    The deviations are those of a sample (n - 1). With the group's this is GRPO's advantage, arXiv 2402.03300, with the batch's
    that of Lite PPO, arXiv 2508.08221.
    """
    rule = batch_standardised_advantages if over_batch else standardised_advantages
    return rule(utilities, valid)


def normalised_terms(
    terms: Float[Tensor, "terms prompts group"],
    known: Bool[Tensor, "terms prompts group"],
    weights: Float[Tensor, " terms"],
    *,
    over_batch: bool,
) -> Float[Tensor, "prompts group"]:
    """Every term normalised by itself, the weighted sum of these, scaled to deviation 1 over the batch.

    z_k = (r_k - group mean of r_k) / (s_k + epsilon), u = sum of w_k z_k, and the result u / (s_u + epsilon), s_u over all
    valid completions. Two terms of very different size then count by their weights alone, and completions whose weighted
    sums agree by different terms stay different. Source: GDPO, arXiv 2601.05242.

    The mean of u over the batch, which the source takes away, is 0 by construction, as every term's sum over a group is: it
    is not taken away, so that no rounding reaches a group of equal values.

    Args:
        terms: value of each term; anything where it is not known.
        known: where a term gave a value for a valid completion. A completion counts as valid where some term did.
        weights: w_k.
        over_batch: s_k over all known values of the term rather than those of the group.
    """
    total = torch.zeros_like(terms[0])
    for values, given, weight in zip(terms, known, weights, strict=True):
        total = total + weight * normalised_sum(values, given, over_batch=over_batch)
    return batch_standardised_advantages(total, known.any(dim=0))

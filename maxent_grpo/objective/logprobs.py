"""Log-probabilities and entropies of sampled tokens, from logits."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def log_distribution(logits: Float[Tensor, "*tokens vocab"]) -> Float[Tensor, "*tokens vocab"]:
    """Log-softmax over the vocabulary in float32 or better; -inf logits stay -inf."""
    wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    return torch.log_softmax(wide, dim=-1)


def chosen_logp(
    log_probs: Float[Tensor, "*tokens vocab"], token_ids: Int[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """log p of the given token at each place [nats]."""
    return log_probs.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)


def token_entropy(log_probs: Float[Tensor, "*tokens vocab"]) -> Float[Tensor, "*tokens"]:
    """H_t = -sum_v p_v log p_v over the vocabulary [nats]; tokens of probability 0 contribute 0 to value and gradient.

    dH/dz_v = -p_v (log p_v + H) for the logits z, which sums to 0.
    """
    # both branches are made finite before the product: where() alone would still send NaN through the backward pass
    possible = torch.isfinite(log_probs)
    safe = torch.where(possible, log_probs, torch.zeros_like(log_probs))
    terms = torch.where(possible, safe.exp() * safe, torch.zeros_like(safe))
    return -terms.sum(dim=-1)


def sequence_sum(
    values: Float[Tensor, "sequences tokens"], mask: Bool[Tensor, "sequences tokens"]
) -> Float[Tensor, " sequences"]:
    """Sum over the masked tokens of each sequence; padding may hold anything."""
    return torch.where(mask, values, torch.zeros_like(values)).sum(dim=-1)


def sequence_score(
    logp_sum: Float[Tensor, " sequences"], lengths: Int[Tensor, " sequences"], *, mode: str, score_length: int
) -> Float[Tensor, " sequences"]:
    """Sequence score of the listwise term: the log-probability summed, per token (`mean`), or per `score_length` (`const`).

    Policy and reference use the same mode, else the target's fixed point depends on length.
    """
    if mode == "mean":
        return logp_sum / lengths.clamp(min=1)
    return logp_sum / score_length if mode == "const" else logp_sum

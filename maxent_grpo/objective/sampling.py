"""The distribution completions are sampled from, as pure functions of logits: one definition for the sampler and for scoring.

``log_softmax(sampled_logits(...))`` is that distribution. Penalties change logits before it and are the sampler's alone:
they depend on what was generated so far, and scoring does not replay them. Nothing here draws random numbers; a draw is a
function of given uniforms.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NUCLEUS_SLACK_EPS = 8.0
BLOCK_TOKENS = 256
"""Tokens of a block in the first level of a draw: about as many as there are blocks in a vocabulary of 50,000."""


def sampled_logits(
    logits: Float[Tensor, "*batch vocab"],
    *,
    temperature: float,
    allowed: Bool[Tensor, " vocab"] | None = None,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float | None = None,
    keep: Int[Tensor, "*batch"] | None = None,
) -> Float[Tensor, "*batch vocab"]:
    """Logits over temperature, minus infinity outside the support that the sampling controls leave.

    The controls act in the order of transformers: allowed tokens, temperature, top-k, top-p, min-p; each sees the
    distribution that the ones before it left. The most likely allowed token always stays. Temperature 0 is the greedy
    limit: the support is the most likely token alone (the first of equals) and its log-probability is 0.

    Differentiable in ``logits``: the support is a constant, gradients flow through the values that stay. With every
    control off the result is the division alone, in 32 bits or more, and ``logits`` itself at temperature 1.

    Args:
        logits: unnormalised log-probabilities of the model, finite.
        temperature: divisor of the logits, >= 0.
        allowed: tokens that may be sampled; at least one. None allows all.
        top_k: keep the k most likely tokens and all that equal the last of them; None is off, more than vocab keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches top_p up to rounding, in (0, 1];
            equals are taken in order of their ids; 1 is off.
        min_p: keep tokens at least this fraction as likely as the most likely one, in [0, 1]; None or 0 is off.
        keep: one token per row that stays whatever the controls say: the token that was sampled, when scoring replays
            the truncation under weights that have moved since.

    Raises:
        ValueError: a control is out of its range.
    """
    _check_controls(temperature, top_k, top_p, min_p)
    # a narrow type's logits would be rounded once more by the division
    scaled = logits if temperature in (0.0, 1.0) else widened(logits) / temperature
    removed = _outside_support(scaled.detach(), temperature == 0.0, allowed, top_k, top_p, min_p)
    if removed is None:
        return scaled
    if keep is not None:
        removed = removed.scatter(-1, keep.long().unsqueeze(-1), False)
    return scaled.masked_fill(removed, -math.inf)


def widened(values: Tensor) -> Tensor:
    """In 32 bits or more: the same tensor, but for narrow types."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def penalised_logits(
    logits: Float[Tensor, "*batch vocab"],
    prompt_counts: Int[Tensor, "*batch vocab"],
    completion_counts: Int[Tensor, "*batch vocab"],
    *,
    presence: float = 0.0,
    frequency: float = 0.0,
    repetition: float = 1.0,
) -> Float[Tensor, "*batch vocab"]:
    """Logits lowered for tokens that were used already, with the meaning the OpenAI interface and vLLM give the penalties.

    A token found in prompt or completion has its positive logit divided (negative: multiplied) by ``repetition``; then
    ``frequency * count + presence * [count > 0]`` is subtracted, counts being over the completion only. Applied before
    the temperature. The values 0, 0, 1 change nothing.

    Args:
        logits: unnormalised log-probabilities of the model.
        prompt_counts: how often each token occurs in the row's prompt.
        completion_counts: how often each token was generated for the row so far.
        presence, frequency: subtracted amounts [nats]; negative ones encourage.
        repetition: factor, > 0; above 1 discourages.

    Raises:
        ValueError: ``repetition`` is not positive.
    """
    if not repetition > 0:
        raise ValueError(f"repetition penalty must be above 0, got {repetition}; 1 is off")
    penalised = logits
    if repetition != 1.0:
        used = (prompt_counts > 0) | (completion_counts > 0)
        weakened = torch.where(logits > 0, logits / repetition, logits * repetition)
        penalised = torch.where(used, weakened, logits)
    if frequency != 0.0:
        # an integer times a number would be rounded to the default precision, whatever that of the logits
        wide = torch.promote_types(logits.dtype, torch.float32)
        penalised = penalised - frequency * completion_counts.to(wide)
    if presence != 0.0:
        penalised = torch.where(completion_counts > 0, penalised - presence, penalised)
    return penalised


def draw_tokens(
    logits: Float[Tensor, "*batch vocab"], uniforms: Float[Tensor, "*batch"]
) -> tuple[Int[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """One token per row by inversion: the first whose cumulative probability exceeds the row's uniform number; and its log p.

    With w_v = exp(z_v - max z) and W = sum_v w_v the token is y = min {v: w_v > 0, w_0 + ... + w_v > u W}, and
    log p(y) = z_y - max z - log W [nats]. Tokens and blocks of tokens are weighed in the type of ``logits``, in float32 at least; cumulative sums are
    in float64, first over the blocks, then over the tokens of the block that the draw falls into. As u is scaled by the total, rounding cannot push a draw past the end, and ``logits`` need not be normalised. A token of weight 0 is never
    returned: not for a uniform number of 0 or next to 1, and not where a parallel sum rounds differently from one token
    to the next.

    Args:
        logits: unnormalised log-probabilities, minus infinity outside the support; rows of NaN give an arbitrary token.
        uniforms: numbers in [0, 1), one per row; float64, or small probabilities become unreachable.
    """
    wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    shifted = wide - wide.amax(dim=-1, keepdim=True)
    weights = shifted.exp()
    vocab = weights.shape[-1]
    if vocab <= 2 * BLOCK_TOKENS:
        tokens, _, total = _first_beyond(weights.double(), uniforms.double(), None)
    else:
        block, before, total = _first_beyond(_block_sums(weights), uniforms.double(), None)
        places = block.unsqueeze(-1) * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS, device=weights.device)
        inside = weights.gather(-1, places.clamp(max=vocab - 1)).double()
        inside = inside.masked_fill(places >= vocab, 0.0)
        place, _, _ = _first_beyond(inside, uniforms.double(), (before, total))
        tokens = block * BLOCK_TOKENS + place
    chosen = shifted.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return tokens, chosen - total.log().to(chosen.dtype)


def _block_sums(weights: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch blocks"]:
    """Sums of consecutive blocks of tokens; the last block may be shorter.

    A block is summed in the type of the weights, whose rounding is that of the sum, and no copy over the vocabulary is made.
    """
    whole = weights.shape[-1] // BLOCK_TOKENS * BLOCK_TOKENS
    blocks = weights[..., :whole].reshape(*weights.shape[:-1], -1, BLOCK_TOKENS)
    sums = blocks.sum(dim=-1)
    if whole < weights.shape[-1]:
        sums = torch.cat([sums, weights[..., whole:].sum(dim=-1, keepdim=True)], dim=-1)
    return sums.double()


def _first_beyond(
    masses: Float[Tensor, "*batch places"],
    uniforms: Float[Tensor, "*batch"],
    part: tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]] | None,
) -> tuple[Int[Tensor, "*batch"], Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """The first place of positive mass whose cumulative mass exceeds a target, the mass before it, and the total.

    The target is u times the total; where ``masses`` are a ``part`` that lies behind a mass ``before`` of a larger
    ``total``, it is u * total - before, kept inside the part against rounding.
    """
    cumulative = masses.cumsum(dim=-1)
    possible = masses > 0
    total = (cumulative * possible).amax(dim=-1)
    target = uniforms * total if part is None else (uniforms * part[1] - part[0]).clamp_min(0.0)
    below_total = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(target, below_total).unsqueeze(-1)
    place = (possible & (cumulative > target)).to(torch.uint8).argmax(dim=-1)
    before = cumulative.gather(-1, (place - 1).clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return place, torch.where(place > 0, before, 0.0), total


def _check_controls(temperature: float, top_k: int | None, top_p: float, min_p: float | None) -> None:
    if not 0.0 <= temperature < math.inf:
        raise ValueError(f"temperature must be finite and at least 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}; None is off")
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p must be in (0, 1], got {top_p}; 1 is off")
    if min_p is not None and not 0.0 <= min_p <= 1.0:
        raise ValueError(f"min_p must be in [0, 1], got {min_p}; None or 0 is off")


def _outside_support(
    scaled: Tensor, greedy: bool, allowed: Tensor | None, top_k: int | None, top_p: float, min_p: float | None
) -> Tensor | None:
    """Mask of the tokens that the controls remove, None when all are off."""
    removed: Tensor | None = None
    if allowed is not None:
        removed = (~allowed).expand_as(scaled)
        scaled = scaled.masked_fill(removed, -math.inf)
    if greedy:
        best = scaled.argmax(dim=-1, keepdim=True)
        return torch.ones_like(scaled, dtype=torch.bool).scatter_(-1, best, False)
    if top_k is not None and top_k < scaled.shape[-1]:
        removed = scaled < scaled.topk(top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(removed, -math.inf)
        # where fewer than k are allowed the threshold is minus infinity and removes nothing
        removed = scaled == -math.inf
    if top_p < 1.0:
        removed = _outside_nucleus(scaled, top_p)
        scaled = scaled.masked_fill(removed, -math.inf)
    if min_p is not None and min_p > 0.0:
        removed = scaled < scaled.amax(dim=-1, keepdim=True) + math.log(min_p)
    return removed


def _outside_nucleus(scaled: Tensor, top_p: float) -> Tensor:
    """Mask of the tokens that are not needed to reach probability ``top_p``."""
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    probs = torch.softmax(widened(ordered), dim=-1)
    before = probs.double().cumsum(dim=-1) - probs
    # a sum that equals top_p but for rounding has reached it: sampler and scorer must not differ by a token there
    slack = NUCLEUS_SLACK_EPS * torch.finfo(probs.dtype).eps
    surplus = before >= top_p - slack
    surplus[..., 0] = False
    removed = torch.empty_like(surplus).scatter_(-1, order, surplus)
    return removed | (scaled == -math.inf)

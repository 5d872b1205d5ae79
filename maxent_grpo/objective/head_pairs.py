"""Log-probabilities of many tokens at few places, straight from hidden states."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear

from maxent_grpo.objective.fused_head import rows_at_once
from maxent_grpo.objective.head_distribution import HeadTransform


@torch.no_grad()
def pair_logp(
    hidden: Float[Tensor, "places width"],
    weight: Float[Tensor, "vocab width"],
    bias: Float[Tensor, " vocab"] | None,
    transform: HeadTransform,
    place: Int[Tensor, " pairs"],
    token: Int[Tensor, " pairs"],
) -> Float[Tensor, " pairs"]:
    """log p(token) at its place in float64 [nats], over the whole vocabulary at temperature 1, without gradient.

    The distribution of a place is normalised once, whatever the number of tokens asked for there; places are taken in chunks, so
    that no tensor of all places and the whole vocabulary is made.
    """
    found = torch.empty(len(place), dtype=torch.float64, device=hidden.device)
    size, _ = rows_at_once(len(hidden), len(weight) * found.dtype.itemsize, on_cpu=hidden.device.type == "cpu")
    for first in range(0, len(hidden), max(size, 1)):
        rows = hidden[first : first + size]
        log_p = torch.log_softmax(transform.apply_(linear(rows, weight, bias)).double(), dim=-1)
        here = ((place >= first) & (place < first + len(rows))).nonzero().squeeze(-1)
        found[here] = log_p[place[here] - first, token[here]]
    return found

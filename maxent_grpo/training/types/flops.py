"""Multiplications and additions that a step of a transformer cannot do without, as a function of what it computes.

A matrix of n weights costs 2 n operations a token forward. Backward it costs 2 n for the gradient of its input and 2 n more for
its own, where it is trained, which makes the usual 6 n of training (arXiv 2001.08361, section 2.1). Attention costs
4 d for each pair of a query and a key in each layer, d the width of all heads: 2 d for the score and 2 d for the weighted value;
backward twice that. Looking up an embedding, norms, activations and the softmax are not counted.

Useful work is what a pass over some completions needs: each prompt once, the output head at scored positions only, and nothing
that is padded or recomputed by gradient checkpointing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ComputeShape:
    """What the cost of a model depends on."""

    body: int
    """Weights of all matrices but the output head and the embeddings, an adapter's among them."""
    trained: int
    """Those of them that are trained."""
    head: int
    """Weights of the output head."""
    head_is_trained: bool
    layers: int
    attention: int
    """Width of all heads together."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is run through a model."""

    tokens: int = 0
    """Tokens that pass the layers."""
    pairs: int = 0
    """Pairs of a query and a key that it sees, in one layer."""
    scored: int = 0
    """Positions whose logits are needed."""

    def __add__(self, other: Work) -> Work:
        return Work(self.tokens + other.tokens, self.pairs + other.pairs, self.scored + other.scored)

    def __sub__(self, other: Work) -> Work:
        return Work(self.tokens - other.tokens, self.pairs - other.pairs, self.scored - other.scored)


def forward_flops(shape: ComputeShape, work: Work) -> int:
    """2 body tokens + 4 layers attention pairs + 2 head scored [FLOP]."""
    return 2 * shape.body * work.tokens + 4 * shape.layers * shape.attention * work.pairs + 2 * shape.head * work.scored


def backward_flops(shape: ComputeShape, work: Work) -> int:
    """2 (body + trained) tokens + 8 layers attention pairs + 2 head (1 + [head is trained]) scored [FLOP]."""
    return (
        2 * (shape.body + shape.trained) * work.tokens
        + 8 * shape.layers * shape.attention * work.pairs
        + 2 * shape.head * (1 + shape.head_is_trained) * work.scored
    )


def scoring_work(prompt: int, completions: Iterable[int]) -> Work:
    """Scoring completions of the given lengths behind one prompt: causal, the last token of each fed to nothing.

    The logits of a completion's first token come from the prompt's last position, those of the others from the token before.
    """
    lengths = list(completions)
    behind = [max(length - 1, 0) for length in lengths]
    return Work(
        prompt + sum(behind),
        prompt * (prompt + 1) // 2 + sum(fed * prompt + fed * (fed + 1) // 2 for fed in behind),
        sum(lengths),
    )


def sampling_work(prompt: int, completions: Iterable[int]) -> Work:
    """Sampling the same: as scoring, but for the first token, whose logits are those of the prompt for all completions."""
    lengths = list(completions)
    work, drawn = scoring_work(prompt, lengths), sum(length > 0 for length in lengths)
    return Work(work.tokens, work.pairs, work.scored - max(drawn - 1, 0))

"""Two entropies that are both called H, both measured in nats, and never interchangeable; hence a type for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightEntropy:
    """H(w) = -sum_i w_i log w_i of the target weights over the completions of a group; between 0 and log G."""

    nats: float


@dataclass(frozen=True, slots=True)
class TokenEntropy:
    """Mean entropy of the policy's next-token distribution over the trained tokens; between 0 and the log of the vocabulary."""

    nats: float

"""What an engine such as vLLM has room for on its GPUs: whatever its weights and its passes leave is cache; in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from maxent_grpo.training.memory_sizes import ModelShape

PASSES = 3 * 2**30
"""What vLLM keeps free on each GPU for its passes and CUDA graphs; it measures this when it starts."""


@dataclass(frozen=True, slots=True)
class EngineRoom:
    """The memory of an engine on one of its GPUs, and what fits into it."""

    share: int
    """All that it takes [bytes]."""
    weights: int
    cache: int
    """Keys and values; negative where not even the weights fit [bytes]."""
    sequences: int
    """Of the given length, decoded together by the whole engine."""


def engine_room(shape: ModelShape, memory: int, share: float, devices: int, tokens: float, most: int) -> EngineRoom:
    """Room of an engine over ``devices`` GPUs of ``memory`` bytes, for at most ``most`` sequences that hold ``tokens`` on average."""
    taken = int(memory * share)
    weights = -(-shape.weights // devices)
    cache = taken - weights - PASSES
    fit = int(max(cache, 0) * devices / (shape.cache_per_token * max(tokens, 1.0)))
    return EngineRoom(taken, weights, cache, min(fit, most))

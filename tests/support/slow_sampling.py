"""Sampling written the slow way, to hold the sampler against: one sequence, one full forward pass a token, plain Python.

Shares no code with the package but the random numbers. Works in double precision.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from maxent_grpo.training.types.runtime import GenerationSettings


@dataclass
class SlowCompletion:
    """What the slow sampler drew."""

    token_ids: list[int]
    logp: list[float]
    finish_reason: str
    text: str


def next_logits(model: Any, token_ids: list[int]) -> list[float]:
    """Logits after ``token_ids``, from a forward pass without a cache."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, -1].tolist()


def _penalised(
    logits: list[float], prompt: list[int], completion: list[int], settings: GenerationSettings
) -> list[float]:
    factor = settings.gen_repetition_penalty or 1.0
    result = list(logits)
    for token in {*prompt, *completion}:
        result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
    for token, count in Counter(completion).items():
        result[token] -= (settings.gen_frequency_penalty or 0.0) * count + (settings.gen_presence_penalty or 0.0)
    return result


def _normalised(weights: dict[int, float]) -> dict[int, float]:
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def next_distribution(logits: list[float], settings: GenerationSettings, eos: set[int]) -> dict[int, float]:
    """Probability of each token that can be sampled."""
    candidates = set(range(len(logits)))
    if settings.allowed_token_ids is not None:
        candidates = set(settings.allowed_token_ids) | eos
    if settings.gen_temperature == 0:
        return {max(sorted(candidates), key=lambda token: logits[token]): 1.0}
    highest = max(logits[token] for token in candidates)
    probs = _normalised({t: math.exp((logits[t] - highest) / settings.gen_temperature) for t in candidates})
    if settings.gen_top_k is not None:
        best = sorted(probs, key=lambda token: -probs[token])[: settings.gen_top_k]
        probs = _normalised({token: probs[token] for token in best})
    if settings.gen_top_p < 1:
        kept: dict[int, float] = {}
        for token in sorted(probs, key=lambda token: -probs[token]):
            if sum(kept.values()) >= settings.gen_top_p:
                break
            kept[token] = probs[token]
        probs = _normalised(kept)
    if settings.gen_min_p is not None:
        floor = settings.gen_min_p * max(probs.values())
        probs = _normalised({token: prob for token, prob in probs.items() if prob >= floor})
    return probs


def _draw(probs: dict[int, float], uniform: float) -> int:
    total = 0.0
    for token in sorted(probs):
        total += probs[token]
        if uniform < total:
            return token
    return max(probs)


def slow_completion(
    model: Any, tokenizer: Any, prompt: list[int], uniforms: list[float], settings: GenerationSettings, eos: set[int]
) -> SlowCompletion:
    """One completion of ``prompt`` whose token t is decided by ``uniforms[t]``."""
    token_ids: list[int] = []
    logp: list[float] = []
    for uniform in uniforms:
        logits = _penalised(next_logits(model, prompt + token_ids), prompt, token_ids, settings)
        probs = next_distribution(logits, settings, eos)
        token = _draw(probs, uniform)
        token_ids.append(token)
        logp.append(math.log(probs[token]))
        if token in eos:
            return SlowCompletion(token_ids, logp, "eos", tokenizer.decode(token_ids[:-1], skip_special_tokens=True))
        text = tokenizer.decode(token_ids, skip_special_tokens=True)
        cuts = [text.split(stop)[0] for stop in settings.gen_stop_sequences or [] if stop in text]
        if cuts:
            return SlowCompletion(token_ids, logp, "stop", min(cuts, key=len))
    return SlowCompletion(token_ids, logp, "length", tokenizer.decode(token_ids, skip_special_tokens=True))

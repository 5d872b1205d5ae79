"""The policy as it is sampled: which tokens it may take and end with, and the sampler of each random stream."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.generation.vllm.engine_weights import EngineWeights
from maxent_grpo.training.generation.vllm.sampler import VllmGenerator
from maxent_grpo.training.scoring.policy import SampledDistribution
from maxent_grpo.training.types.runtime import GenerationSettings, RuntimeHandles

TRAIN = "train"
"""The random stream of training's rollouts."""


def sampled_distribution(runtime: RuntimeHandles, generation: GenerationSettings) -> SampledDistribution:
    """The distribution that completions are drawn from, which scoring divides and restricts logits by too."""
    allowed = None
    if generation.allowed_token_ids is not None:
        head = cast(nn.Module, runtime.model.get_output_embeddings())
        allowed = torch.zeros(cast(torch.Tensor, head.weight).shape[0], dtype=torch.bool, device=runtime.device)
        allowed[list(generation.allowed_token_ids) + _end_tokens(runtime)] = True
    return SampledDistribution(
        temperature=generation.gen_temperature,
        allowed=allowed,
        top_k=generation.gen_top_k,
        top_p=generation.gen_top_p,
        min_p=generation.gen_min_p,
    )


def local_generator(runtime: RuntimeHandles, settings: GenerationSettings, seed: int, stream: str) -> LocalGenerator:
    """A sampler of the policy with the random numbers of that seed and name."""
    lookup = runtime.prompt_cache_get
    assert lookup is not None
    return LocalGenerator(
        runtime.model,
        runtime.tokenizer,
        settings,
        lookup,
        seed=seed,
        stream=stream,
        pad_token_id=pad_token_id(runtime.tokenizer),
        eos_token_ids=_end_tokens(runtime),
    )


def vllm_generator(
    weights: EngineWeights, runtime: RuntimeHandles, settings: GenerationSettings, seed: int, stream: str
) -> VllmGenerator:
    """A sampler of the policy through vLLM with the random numbers of that seed and name."""
    lookup = runtime.prompt_cache_get
    assert lookup is not None
    return VllmGenerator(
        weights, runtime.tokenizer, settings, lookup, seed=seed, stream=stream, eos_token_ids=_end_tokens(runtime),
        sync_interval=settings.vllm.sync_interval if stream == TRAIN else 1,
        local=local_generator(runtime, settings, seed, f"{stream}/local") if settings.vllm.backfill_local else None,
    )  # fmt: skip


def pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The tokenizer's pad token, or its end token where it has none: what is padding is told by lengths, never by the token."""
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    assert isinstance(pad, int), "a model's tokenizer is refused where it has no end token"
    return pad


def _end_tokens(runtime: RuntimeHandles) -> list[int]:
    """Ids that end a completion: the tokenizer's, and those of the model's generation configuration."""
    declared = runtime.model.generation_config.eos_token_id if runtime.model.generation_config else None
    listed = declared if isinstance(declared, list) else [declared]
    return sorted({token for token in [*listed, runtime.tokenizer.eos_token_id] if token is not None})

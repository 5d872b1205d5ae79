"""Random models of a few thousand parameters over the character tokenizer, and the settings to sample from them.

Weights are spread wider than usual, so that the distributions are neither flat nor certain, and come from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from maxent_grpo.models.tokenizer import build_char_tokenizer
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.types.generation import GenerationPenaltyConfig, VLLMClientConfig
from maxent_grpo.training.types.rewards import PromptCacheEntry
from maxent_grpo.training.types.runtime import GenerationSettings

MAX_POSITIONS = 128
_SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}


@cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """The character tokenizer of the package: pad 0, bos 1, eos 2; one object, which tests must leave as it is."""
    return build_char_tokenizer()


def _seeded(build: Callable[[], PreTrainedModel], dtype: torch.dtype, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().to(dtype).eval()


def _special_ids() -> dict[str, int]:
    return {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def tiny_llama(dtype: torch.dtype = torch.float64, *, seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A Llama of two layers with heads of 32; ``changes`` go to its configuration."""
    config = LlamaConfig(**({"vocab_size": len(tiny_tokenizer())} | _SHAPE | _special_ids() | changes))
    return _seeded(lambda: LlamaForCausalLM(config), dtype, seed)


def tiny_qwen2(dtype: torch.dtype = torch.float64, *, seed: int = 0, **changes: Any) -> Qwen2ForCausalLM:
    """A Qwen2 with grouped keys and values (two query heads to one)."""
    shape = _SHAPE | {"num_key_value_heads": 1} | _special_ids() | changes
    config = Qwen2Config(vocab_size=len(tiny_tokenizer()), **shape)
    return _seeded(lambda: Qwen2ForCausalLM(config), dtype, seed)


def tiny_mistral(dtype: torch.dtype = torch.float64, *, seed: int = 0, **changes: Any) -> MistralForCausalLM:
    """A Mistral whose attention sees a window of 6 tokens."""
    shape = _SHAPE | {"sliding_window": 6, "head_dim": 32} | _special_ids() | changes
    config = MistralConfig(vocab_size=len(tiny_tokenizer()), **shape)
    return _seeded(lambda: MistralForCausalLM(config), dtype, seed)


def tiny_gpt2(dtype: torch.dtype = torch.float64, *, seed: int = 0, **changes: Any) -> GPT2LMHeadModel:
    """A GPT-2 with learnt positions and its usual dropout of 0.1 in training mode."""
    shape: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": MAX_POSITIONS}
    shape |= {"initializer_range": 0.15, "tie_word_embeddings": False}
    config = GPT2Config(vocab_size=len(tiny_tokenizer()), **(shape | _special_ids() | changes))
    return _seeded(lambda: GPT2LMHeadModel(config), dtype, seed)


def prompt_entries(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], PromptCacheEntry]:
    """A function from a rendered prompt to its tokens, as the prompt cache gives them."""

    def entry(prompt: str) -> PromptCacheEntry:
        input_ids = tokenizer.encode(prompt, add_special_tokens=False)
        return PromptCacheEntry(input_ids, [1] * len(input_ids))

    return entry


def row_prompts(*texts: str) -> list[str]:
    """Prompts whose rows are called ``row-0``, ``row-1``, …"""
    return [RowPrompt(text, f"row-{index}") for index, text in enumerate(texts)]


def sampling_settings(
    *,
    max_completion_len: int = 8,
    temperature: float = 1.0,
    top_p: float = 1.0,
    allowed_token_ids: tuple[int, ...] | None = None,
    batch_size: int = 0,
    **penalty: Any,
) -> GenerationSettings:
    """Settings of the local sampler; ``penalty`` are fields of ``GenerationPenaltyConfig``."""
    return GenerationSettings(
        max_prompt_len=MAX_POSITIONS,
        max_completion_len=max_completion_len,
        gen_temperature=temperature,
        gen_top_p=top_p,
        use_vllm=False,
        vllm=VLLMClientConfig(),
        penalty=GenerationPenaltyConfig(**penalty),
        allowed_token_ids=allowed_token_ids,
        batch_size=batch_size,
    )

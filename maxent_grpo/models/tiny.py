"""A small Llama-architecture transformer with random weights, built without a download."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from maxent_grpo.config.model import TinyModelConfig
from maxent_grpo.errors import ConfigError

MAX_POSITIONS = 2048
# Short contexts need positions told apart within tens of tokens: the usual base of 10,000 leaves most rotations unused there.
ROPE_THETA = 1000.0
INITIALIZER_RANGE = 0.05
HEAD_SIZES = (32, 64)


def tiny_llama_config(config: TinyModelConfig, tokenizer: PreTrainedTokenizerBase) -> LlamaConfig:
    """The architecture of ``config`` over the tokenizer's vocabulary, with its special ids.

    Raises:
        ConfigError: hidden_size / num_heads is not 32 or 64.
    """
    head_size, rest = divmod(config.hidden_size, config.num_heads)
    if rest or head_size not in HEAD_SIZES:
        raise ConfigError(
            f"model.hidden_size={config.hidden_size} over model.num_heads={config.num_heads} gives heads of "
            f"{config.hidden_size / config.num_heads:g}; attention kernels take 32 or 64. "
            f"Set model.num_heads={max(1, config.hidden_size // 32)} or another width."
        )
    ids = special_ids(tokenizer)
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        initializer_range=INITIALIZER_RANGE,
        tie_word_embeddings=False,
        **ids,
    )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Padding, start and end ids under the names that transformers' configurations use."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    return {name: cast(int, getattr(tokenizer, name)) for name in names}


def build_tiny_llama(config: TinyModelConfig, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """A fresh float32 model whose weights are a function of ``config`` alone; the global random state is left as found."""
    llama_config = tiny_llama_config(config, tokenizer)
    llama_config._attn_implementation = str(config.attention)
    with torch.random.fork_rng(devices=[]):
        # the CPU generator only: torch.manual_seed would reseed every GPU as well
        torch.default_generator.manual_seed(config.init_seed)
        model = LlamaForCausalLM(llama_config)
    model.generation_config = GenerationConfig(**special_ids(tokenizer))
    return model

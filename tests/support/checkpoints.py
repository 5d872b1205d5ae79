"""Random checkpoints of many architectures as folders: two layers, a small tokenizer built in code, and a chat template.

The tokenizer is the character one with one more special token that ends a chat turn, and without a pad token of its own
where a model is known for that. Weights are spread wide, so that distributions are neither flat nor certain.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from maxent_grpo.config.model import HfModelConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.build import build_model
from maxent_grpo.models.tokenizer import CHAT_TEMPLATE, build_char_tokenizer

TURN_END = "<|im_end|>"
TURN_TEMPLATE = CHAT_TEMPLATE.replace("{{ eos_token }}{% endif %}", f"{TURN_END}{{% endif %}}")
"""Ends an assistant's turn with another token than the tokenizer's end token, as Llama 3 and Qwen do."""
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}


@dataclass(frozen=True)
class Architecture:
    """A checkpoint to make, and the settings that it needs."""

    config: Callable[..., PretrainedConfig]
    changes: dict[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    window: int | None = None
    """Positions that its sliding layers see."""


GPT2_SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 512, "initializer_range": 0.3}
SLIDING_LAYERS = ["sliding_attention", "full_attention"]

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(LlamaConfig, {"tie_word_embeddings": False}),
    "llama-tied": Architecture(LlamaConfig, {"tie_word_embeddings": True}),
    "qwen2": Architecture(Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": Architecture(Qwen3Config, {"tie_word_embeddings": True}),
    "gemma2": Architecture(
        Gemma2Config,
        {
            "sliding_window": 6, "layer_types": SLIDING_LAYERS, "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16,
        },
        ("model.attention=eager",),
        window=6,
    ),
    "gemma3": Architecture(
        Gemma3TextConfig,
        {"sliding_window": 6, "layer_types": SLIDING_LAYERS, "query_pre_attn_scalar": 16},
        window=6,
    ),
    "gpt2": Architecture(GPT2Config, GPT2_SIZES | {"resid_pdrop": 0.1, "attn_pdrop": 0.1, "embd_pdrop": 0.1}),
    "mistral": Architecture(MistralConfig, {"sliding_window": 6, "tie_word_embeddings": False}, window=6),
}  # fmt: skip


def small_tokenizer(*, pad: bool = True, template: str | None = TURN_TEMPLATE) -> PreTrainedTokenizerFast:
    """The character tokenizer with a token that ends a chat turn; ``pad`` False leaves it without a pad token."""
    tokenizer = build_char_tokenizer()
    tokenizer.add_tokens([TURN_END], special_tokens=True)
    if not pad:
        tokenizer.pad_token = None
    tokenizer.chat_template = template
    return tokenizer


def save_checkpoint(
    folder: Path,
    name: str,
    *,
    seed: int = 0,
    tokenizer: PreTrainedTokenizerFast | None = None,
    generation: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write a random checkpoint of an architecture; ``generation`` becomes its generation_config.json as it stands."""
    kind = ARCHITECTURES[name]
    tokenizer = tokenizer or small_tokenizer()
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {} if kind.config is GPT2Config else SIZES
    config = kind.config(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **(sizes | kind.changes | ids | changes)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or "bias" in parameter_name:
                torch.nn.init.normal_(parameter, mean=float("bias" not in parameter_name), std=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder


def refusal(source: Any, *, positions: int = 0, **settings: Any) -> str:
    """The sentence with which a model is refused, without the setting's own value."""
    with pytest.raises(ConfigError) as raised:
        build_model(HfModelConfig(name=str(source), **settings), positions=positions)
    [problem] = raised.value.problems
    return problem.replace(f"model.name={source}", "model.name=X")

"""Sizes of well-known models, for describing a run where the hub cannot be reached; nothing is ever trained from them.

The numbers are those of the models' public config.json files.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from maxent_grpo.config.model import HfModelConfig
from maxent_grpo.models.architecture import check_attention, check_positions


def _sizes(
    kind: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocab: int,
    positions: int,
    *,
    tied: bool,
) -> dict[str, Any]:
    return {
        "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": intermediate, "vocab_size": vocab,
        "max_position_embeddings": positions, "tie_word_embeddings": tied,
    }  # fmt: skip


_QWEN_05B = _sizes("qwen2", 24, 896, 14, 2, 4864, 151936, 32768, tied=True)
_QWEN_15B = _sizes("qwen2", 28, 1536, 12, 2, 8960, 151936, 32768, tied=True)
_QWEN_7B = _sizes("qwen2", 28, 3584, 28, 4, 18944, 152064, 32768, tied=False)
_QWEN_3B = _sizes("qwen2", 36, 2048, 16, 2, 11008, 151936, 32768, tied=True)
_QWEN_14B = _sizes("qwen2", 48, 5120, 40, 8, 13824, 152064, 131072, tied=False)
_QWEN_32B = _sizes("qwen2", 64, 5120, 40, 8, 27648, 152064, 131072, tied=False)
_QWEN_MATH_7B = _QWEN_7B | {"max_position_embeddings": 4096}
_LLAMA_8B = _sizes("llama", 32, 4096, 32, 8, 14336, 128256, 131072, tied=False)

KNOWN_MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": _QWEN_05B,
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN_05B,
    "Qwen/Qwen2.5-1.5B": _QWEN_15B,
    "Qwen/Qwen2.5-1.5B-Instruct": _QWEN_15B,
    "Qwen/Qwen2.5-Math-1.5B": _QWEN_15B | {"max_position_embeddings": 4096},
    "Qwen/Qwen2.5-3B": _QWEN_3B,
    "Qwen/Qwen2.5-3B-Instruct": _QWEN_3B,
    "Qwen/Qwen2.5-7B": _QWEN_7B,
    "Qwen/Qwen2.5-7B-Instruct": _QWEN_7B,
    "Qwen/Qwen2.5-Math-7B": _QWEN_MATH_7B,
    "Qwen/Qwen2.5-14B": _QWEN_14B,
    "Qwen/Qwen2.5-14B-Instruct": _QWEN_14B | {"max_position_embeddings": 32768},
    "Qwen/Qwen2.5-32B": _QWEN_32B,
    "Qwen/Qwen2.5-32B-Instruct": _QWEN_32B | {"max_position_embeddings": 32768},
    "meta-llama/Llama-3.1-8B": _LLAMA_8B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_8B,
}
"""Hub id to sizes, as keywords of transformers' configurations."""


def known_model(config: HfModelConfig, dtype: torch.dtype, positions: int) -> PreTrainedModel | None:
    """A model of the table on the default device, which has to be the meta device; None for one that is not there.

    Raises:
        ConfigError: it does not fit the settings.
    """
    sizes = KNOWN_MODELS.get(config.name)
    if sizes is None:
        return None
    assert torch.get_default_device().type == "meta", "a model of these sizes has no weights"
    described = AutoConfig.for_model(**sizes)
    check_attention(config.attention, described, config.name)
    check_positions(described, config.name, positions)
    described._attn_implementation = str(config.attention)
    return AutoModelForCausalLM.from_config(described, dtype=dtype)

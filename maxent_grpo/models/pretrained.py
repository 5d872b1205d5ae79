"""Models with trained weights: a transformers folder or a hub id, read into memory with its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.config.model import HfModelConfig, ModelConfig, SmolLM2ModelConfig
from maxent_grpo.models.packaged import checked_folder


def load_smollm2(config: SmolLM2ModelConfig, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The converted package; see ``models/packaged.py``."""
    return load_folder(checked_folder(config.cache_dir), config, dtype)


def load_hf(config: HfModelConfig, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model that `model.name` names."""
    return load_folder(config.name, config, dtype, revision=config.revision, trust_remote_code=config.trust_remote_code)


def load_folder(
    source: str | Path, config: ModelConfig, dtype: torch.dtype, **options: object
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a folder or hub id; weights from safetensors only."""
    tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left", **options)
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=dtype, attn_implementation=str(config.attention), use_safetensors=True, **options
    )
    return cast(PreTrainedModel, model), tokenizer

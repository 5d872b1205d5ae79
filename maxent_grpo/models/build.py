"""From the `model` settings to a model with its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.config.model import Dtype, HfModelConfig, ModelConfig, SmolLM2ModelConfig, TinyModelConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.pretrained import load_hf, load_smollm2
from maxent_grpo.models.tiny import build_tiny_llama
from maxent_grpo.models.tokenizer import build_char_tokenizer

TORCH_DTYPES = {Dtype.float32: torch.float32, Dtype.float64: torch.float64, Dtype.bfloat16: torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model and the tokenizer whose ids it speaks; the model is on the CPU and in training mode."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def build_model(config: ModelConfig) -> LoadedModel:
    """Build the model that ``config``'s type names, in its dtype, with its attention implementation and checkpointing.

    Raises:
        ConfigError: no builder knows the type of ``config``.
    """
    builder = _BUILDERS.get(type(config))
    if builder is None:
        known = ", ".join(kind.__name__ for kind in _BUILDERS)
        raise ConfigError(f"no model can be built from {type(config).__name__}; known are {known}. Choose model=tiny.")
    loaded = builder(config)
    loaded.model.to(TORCH_DTYPES[config.dtype])  # pyright: ignore[reportArgumentType] - the wrapped signature loses dtype
    if config.gradient_checkpointing:
        loaded.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    loaded.model.train()
    return loaded


def _build_tiny(config: ModelConfig) -> LoadedModel:
    assert isinstance(config, TinyModelConfig)
    tokenizer = build_char_tokenizer()
    return LoadedModel(model=build_tiny_llama(config, tokenizer), tokenizer=tokenizer)


def _build_smollm2(config: ModelConfig) -> LoadedModel:
    assert isinstance(config, SmolLM2ModelConfig)
    return LoadedModel(*load_smollm2(config, TORCH_DTYPES[config.dtype]))


def _build_hf(config: ModelConfig) -> LoadedModel:
    assert isinstance(config, HfModelConfig)
    return LoadedModel(*load_hf(config, TORCH_DTYPES[config.dtype]))


_BUILDERS: dict[type[ModelConfig], Callable[[ModelConfig], LoadedModel]] = {
    TinyModelConfig: _build_tiny,
    SmolLM2ModelConfig: _build_smollm2,
    HfModelConfig: _build_hf,
}

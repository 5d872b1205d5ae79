"""From the `model` settings to a model with its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.config.model import Dtype, HfModelConfig, ModelConfig, SmolLM2ModelConfig, TinyModelConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.attention import install_layouts
from maxent_grpo.models.pretrained import load_hf, load_smollm2
from maxent_grpo.models.tiny import build_tiny_llama
from maxent_grpo.models.tokenizer import build_char_tokenizer

TORCH_DTYPES = {Dtype.float32: torch.float32, Dtype.float64: torch.float64, Dtype.bfloat16: torch.bfloat16}
COMPILE_BACKEND = "inductor"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model and the tokenizer whose ids it speaks; the model is on the CPU and in training mode."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    notes: tuple[str, ...] = ()
    """What a user should know of how it was loaded."""


def build_model(config: ModelConfig, *, positions: int = 0) -> LoadedModel:
    """Build the model that ``config``'s type names, in its dtype, with its attention implementation and checkpointing.

    Args:
        config: the model's settings.
        positions: most tokens of a prompt with its completion, which a pretrained model must have positions for; 0 leaves
            that open.

    Raises:
        ConfigError: no builder knows the type of ``config``, or the model cannot be had or used.
    """
    builder = _BUILDERS.get(type(config))
    if builder is None:
        known = ", ".join(kind.__name__ for kind in _BUILDERS)
        raise ConfigError(f"no model can be built from {type(config).__name__}; known are {known}. Choose model=tiny.")
    loaded = builder(config, positions)
    if isinstance(config, TinyModelConfig):
        # one that was read has its type already, and rotary frequencies in float32, which this would round as well
        loaded.model.to(TORCH_DTYPES[config.dtype])  # pyright: ignore[reportArgumentType] - the wrapped signature loses dtype
    if config.gradient_checkpointing:
        if not loaded.model.supports_gradient_checkpointing:
            raise ConfigError(
                f"model.gradient_checkpointing=true: {type(loaded.model).__name__} does not have it; write "
                "model.gradient_checkpointing=false"
            )
        loaded.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    install_layouts(loaded.model)
    loaded.model.train()
    return loaded


def compile_model(model: PreTrainedModel) -> None:
    """Let every call of the model outside of sampling run compiled; names of weights and state stay as they are.

    The decoder is compiled and the output head is not, which scoring runs at scored positions only; a model that names no
    decoder is compiled as a whole. Lengths differ from slice to slice, so sizes are compiled as variables from the start.
    """
    decoder = model.get_decoder()
    body = decoder if isinstance(decoder, nn.Module) else model
    body.compile(dynamic=True, backend=COMPILE_BACKEND)


def _build_tiny(config: ModelConfig, positions: int) -> LoadedModel:
    assert isinstance(config, TinyModelConfig)
    tokenizer = build_char_tokenizer()
    return LoadedModel(model=build_tiny_llama(config, tokenizer), tokenizer=tokenizer)


def _build_smollm2(config: ModelConfig, positions: int) -> LoadedModel:
    assert isinstance(config, SmolLM2ModelConfig)
    loaded = load_smollm2(config, TORCH_DTYPES[config.dtype], positions)
    return LoadedModel(loaded.model, loaded.tokenizer, loaded.notes)


def _build_hf(config: ModelConfig, positions: int) -> LoadedModel:
    assert isinstance(config, HfModelConfig)
    loaded = load_hf(config, TORCH_DTYPES[config.dtype], positions)
    return LoadedModel(loaded.model, loaded.tokenizer, loaded.notes)


_BUILDERS: dict[type[ModelConfig], Callable[[ModelConfig, int], LoadedModel]] = {
    TinyModelConfig: _build_tiny,
    SmolLM2ModelConfig: _build_smollm2,
    HfModelConfig: _build_hf,
}

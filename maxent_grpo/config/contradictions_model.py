"""Settings of `model` that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator

from maxent_grpo.config.model import Attention, Dtype, TinyModelConfig
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import DeviceChoice

HEAD_WIDTHS = (32, 64)


def _tiny_model(config: RootConfig) -> Iterator[str]:
    model = config.model
    if not isinstance(model, TinyModelConfig) or model.num_heads < 1:
        return
    widths = [width * model.num_heads for width in HEAD_WIDTHS]
    if model.hidden_size not in widths:
        yield (
            f"model.hidden_size={model.hidden_size} with model.num_heads={model.num_heads}: an attention head must be 32 or "
            f"64 wide; use model.hidden_size={widths[0]} or model.hidden_size={widths[1]}"
        )


def _flash_attention(config: RootConfig) -> Iterator[str]:
    if config.model.attention is not Attention.flash_attention_2:
        return
    if config.model.dtype is not Dtype.bfloat16:
        yield (
            f"model.attention=flash_attention_2 computes in 16 bits, and model.dtype={config.model.dtype}: write "
            f"model.dtype=bfloat16, or model.attention=sdpa"
        )
    if config.run.device is DeviceChoice.cpu:
        yield "model.attention=flash_attention_2 runs on GPUs only, and run.device=cpu: write model.attention=sdpa"


MODEL_RULES = (_tiny_model, _flash_attention)

"""The one attention function of models with `attention=sdpa`: transformers' own, unless the caller lays the tokens out itself.

A caller that knows which tokens share a prompt passes ``model(..., layout=...)``; every layer then asks that layout for its
attention instead of building a mask for all pairs of tokens. Without a layout nothing differs from plain sdpa.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

LAID_OUT = "laid_out_sdpa"
"""Name of the attention function among those of transformers."""


class AttentionLayout(Protocol):
    """Computes the attention of one layer for tokens whose arrangement it knows."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None) -> Tensor:
        """Attention outputs [rows, L, heads, D] of queries [rows, heads, L, D], keys and values [rows, kv_heads, K, D].

        ``scaling`` multiplies the scores, None is 1 / sqrt(D); ``window`` is the number of positions a token looks back on,
        its own included, None all.
        """
        ...


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: AttentionLayout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer."""
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    window = kwargs.get("sliding_window")
    return layout.attend(query, key, value, scaling=kwargs.get("scaling"), window=window), None


AttentionInterface.register(LAID_OUT, attend)
AttentionMaskInterface.register(LAID_OUT, sdpa_mask)


def install_layouts(model: PreTrainedModel) -> None:
    """Let a model with sdpa attention take layouts; others are left as they are."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(LAID_OUT)


def takes_layouts(model: nn.Module) -> bool:
    """Whether ``install_layouts`` had an effect on the model."""
    config = getattr(getattr(model, "module", model), "config", None)
    return getattr(config, "_attn_implementation", None) == LAID_OUT

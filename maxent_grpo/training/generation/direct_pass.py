"""One token through a decoder of the Llama family with as few operations as it takes.

A decoding step of a small model, or of few completions, spends more time between its operations than in them: a transformers
layer makes some forty of them. This is the same function for layers of plain Llama, Qwen2 and Qwen3 models in float32, the
type that transformers takes their norms in, for one new token in each row. Whether it gives the model's own logits is tried before it is used (``shared_prefix``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from maxent_grpo.training.generation.kv_cache import RoomyLayer

KNOWN_LAYERS = ("LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
"""Layer classes of transformers that compute what ``_Layer`` does."""

Linear = Callable[[Tensor], Tensor]


class Attend(Protocol):
    """Attention of a layer, see ``models.attention.AttentionLayout``."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None
    ) -> Tensor:
        """Attention outputs [rows, 1, heads, D]."""
        ...


@dataclass(frozen=True, slots=True)
class _Layer:
    """The parts of a decoder layer, which follow the weights."""

    norm: Linear
    query: Linear
    key: Linear
    value: Linear
    head_norms: tuple[Linear, Linear] | None
    output: Linear
    next_norm: Linear
    gate: Linear
    up: Linear
    act: Linear
    down: Linear
    head_dim: int
    scaling: float
    window: int | None


class DirectPass:
    """A model's decoding step; made anew for each call of the sampler, as it costs nothing."""

    def __init__(self, model: PreTrainedModel) -> None:
        body: Any = model.get_decoder()
        self._embedding: nn.Module = body.embed_tokens
        self._rotary: nn.Module = body.rotary_emb
        self._layers = [_layer(layer) for layer in body.layers]
        self._norm = _norm(body.norm)
        self._head = _linear(model.get_output_embeddings())

    def __call__(self, tokens: Tensor, positions: Tensor, cache: Sequence[RoomyLayer], attend: Attend) -> Tensor:
        """Logits [rows, V] behind ``tokens`` [rows] at ``positions`` [rows]; ``cache`` takes their keys and values."""
        rows = tokens.shape[0]
        states = self._embedding(tokens)
        cos, sin = self._rotary(states, positions.unsqueeze(1))
        half = cos.shape[-1] // 2
        cos, sin = cos[..., :half], sin[..., :half]  # both halves of a head turn by the same angles
        for layer, kept in zip(self._layers, cache, strict=True):
            inner = layer.norm(states)
            query = layer.query(inner).view(rows, -1, layer.head_dim)
            key = layer.key(inner).view(rows, -1, layer.head_dim)
            if layer.head_norms is not None:
                query, key = layer.head_norms[0](query), layer.head_norms[1](key)
            turned = _turned(torch.cat((query, key), dim=1), cos, sin).unsqueeze(2)
            value = layer.value(inner).view(rows, -1, 1, layer.head_dim)
            keys, values = kept.update(turned[:, query.shape[1] :], value)
            seen = attend(turned[:, : query.shape[1]], keys, values, scaling=layer.scaling, window=layer.window)
            states = states + layer.output(seen.reshape(rows, -1))
            inner = layer.next_norm(states)
            states = states + layer.down(layer.act(layer.gate(inner)).mul_(layer.up(inner)))
        return self._head(self._norm(states))


def direct_pass(model: PreTrainedModel) -> DirectPass | None:
    """The model's decoding step; None where its layers are of another kind, or its weights of another type."""
    body: Any = model.get_decoder()
    layers = list(getattr(body, "layers", ()))
    known = bool(layers) and all(
        type(layer).__name__ in KNOWN_LAYERS and type(layer).__module__.startswith("transformers.models.")
        for layer in layers
    )
    return DirectPass(model) if known and model.dtype is torch.float32 else None


def _turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of heads [rows, heads, D] by angles [rows, 1, D / 2]."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat((torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)), -1)


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    norms = (_norm(attention.q_norm), _norm(attention.k_norm)) if hasattr(attention, "q_norm") else None
    return _Layer(
        norm=_norm(layer.input_layernorm),
        query=_linear(attention.q_proj),
        key=_linear(attention.k_proj),
        value=_linear(attention.v_proj),
        head_norms=norms,
        output=_linear(attention.o_proj),
        next_norm=_norm(layer.post_attention_layernorm),
        gate=_linear(mlp.gate_proj),
        up=_linear(mlp.up_proj),
        act=mlp.act_fn,
        down=_linear(mlp.down_proj),
        head_dim=attention.head_dim,
        scaling=attention.scaling,
        window=getattr(attention, "sliding_window", None),
    )


def _linear(module: Any) -> Linear:
    """The module, or without a call of it where it is a plain product; an adapter's is a module of its own."""
    if type(module) is not nn.Linear or module._forward_hooks or module._forward_pre_hooks:
        return module
    return partial(functional.linear, weight=module.weight, bias=module.bias)


def _norm(module: Any) -> Linear:
    weight = module.weight
    return partial(functional.rms_norm, normalized_shape=weight.shape, weight=weight, eps=module.variance_epsilon)

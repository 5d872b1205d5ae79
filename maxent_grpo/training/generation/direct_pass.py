"""One token through a decoder of the Llama family with as few operations as it takes.

A decoding step of a small model, or of few completions, spends more time between its operations than in them: a transformers
layer makes some forty of them. This is the same function for layers of plain Llama, Qwen2 and Qwen3 models in float32, the
type that transformers takes their norms in, for one new token in each row. Whether it gives the model's own logits is tried before it is used (``shared_prefix``).

Products of few rows spend most of their time on bringing the matrix into the kernel's order. On a CPU, oneDNN keeps it in that order from
one step to the next (``packed_products``), which makes such products up to twice as fast, for a copy of the weights while completions run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from maxent_grpo.training.generation.kv_cache import RoomyLayer
from maxent_grpo.training.generation.packed_products import packed_products, packs

KNOWN_LAYERS = ("LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
"""Layer classes of transformers that compute what ``_Layer`` does."""

STEPS_TO_PACK = 8
"""Steps from which on packed weights pay: packing takes about as long as five steps."""
Linear = Callable[[Tensor], Tensor]
Linears = Callable[[Tensor], Sequence[Tensor]]
"""Products of several matrices with the same rows."""


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
    query_key_value: Linears
    head_norms: tuple[Linear, Linear] | None
    output: Linears
    next_norm: Linear
    gate_up: Linears
    act: Linear
    down: Linears
    head_dim: int
    scaling: float
    window: int | None


class DirectPass:
    """A model's decoding step; made anew for each call of the sampler, as it costs nothing unless it is packed."""

    def __init__(self, model: PreTrainedModel, *, pack: bool = False) -> None:
        """Take the parts of ``model``, with ``pack`` copies of its matrices in the kernel's order, of which it must not change."""
        body: Any = model.get_decoder()
        self._model = model
        self._embedding: nn.Module = body.embed_tokens
        self._rotary: nn.Module = body.rotary_emb
        self._layers = [_layer(layer, pack) for layer in body.layers]
        self._norm = _norm(body.norm)
        self._head = _linears([model.get_output_embeddings()], pack)

    def of_steps(self, steps: int) -> DirectPass:
        """The same step where so many follow on the same weights."""
        return self._packed if steps >= STEPS_TO_PACK and packs(self._model) else self

    @cached_property
    def _packed(self) -> DirectPass:
        return DirectPass(self._model, pack=True)

    def __call__(self, tokens: Tensor, positions: Tensor, cache: Sequence[RoomyLayer], attend: Attend) -> Tensor:
        """Logits [rows, V] behind ``tokens`` [rows] at ``positions`` [rows]; ``cache`` takes their keys and values."""
        rows = tokens.shape[0]
        states = self._embedding(tokens)
        cos, sin = self._rotary(states, positions.unsqueeze(1))
        half = cos.shape[-1] // 2
        cos, sin = cos[..., :half], sin[..., :half]  # both halves of a head turn by the same angles
        for layer, kept in zip(self._layers, cache, strict=True):
            query, key, value = (
                part.view(rows, -1, layer.head_dim) for part in layer.query_key_value(layer.norm(states))
            )
            if layer.head_norms is not None:
                query, key = layer.head_norms[0](query), layer.head_norms[1](key)
            turned = _turned(torch.cat((query, key), dim=1), cos, sin).unsqueeze(2)
            keys, values = kept.update(turned[:, query.shape[1] :], value.unsqueeze(2))
            seen = attend(turned[:, : query.shape[1]], keys, values, scaling=layer.scaling, window=layer.window)
            states = states + layer.output(seen.reshape(rows, -1))[0]
            gate, up = layer.gate_up(layer.next_norm(states))
            states = states + layer.down(layer.act(gate).mul_(up))[0]
        return self._head(self._norm(states))[0]


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


def _layer(layer: Any, pack: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    norms = (_norm(attention.q_norm), _norm(attention.k_norm)) if hasattr(attention, "q_norm") else None
    return _Layer(
        norm=_norm(layer.input_layernorm),
        query_key_value=_linears([attention.q_proj, attention.k_proj, attention.v_proj], pack),
        head_norms=norms,
        output=_linears([attention.o_proj], pack),
        next_norm=_norm(layer.post_attention_layernorm),
        gate_up=_linears([mlp.gate_proj, mlp.up_proj], pack),
        act=mlp.act_fn,
        down=_linears([mlp.down_proj], pack),
        head_dim=attention.head_dim,
        scaling=attention.scaling,
        window=getattr(attention, "sliding_window", None),
    )


def _linears(modules: Sequence[Any], pack: bool) -> Linears:
    """The modules' products, or without calls of them where they are plain ones; an adapter's is a module of its own."""
    plain = [type(each) is nn.Linear and not (each._forward_hooks or each._forward_pre_hooks) for each in modules]
    packed = packed_products(modules) if pack and all(plain) else None
    if packed is not None:
        return packed
    calls = [
        partial(functional.linear, weight=each.weight, bias=each.bias) if is_plain else each
        for each, is_plain in zip(modules, plain, strict=True)
    ]
    return lambda rows: [call(rows) for call in calls]


def _norm(module: Any) -> Linear:
    weight = module.weight
    return partial(functional.rms_norm, normalized_shape=weight.shape, weight=weight, eps=module.variance_epsilon)

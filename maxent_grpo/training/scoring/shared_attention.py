"""Attention of prompts and their completions that stand in one row: prompt 1, its completions, prompt 2, ..., without padding.

A prompt sees itself, a completion its prompt and itself, both causally. Of P prompt tokens and completions of C_1 .. C_G that
costs P^2 / 2 + sum(C_i P + C_i^2 / 2) scores a prompt, and memory for P + sum(C_i) tokens; no mask over pairs of tokens is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from maxent_grpo.training.scoring.attention_parts import (
    Places,
    RowParts,
    Runs,
    cut_parts,
    parts_backward,
    parts_forward,
)


@dataclass(frozen=True)
class SharedPrompts:
    """Where prompts and completions stand in a row [1, L]; an ``AttentionLayout``."""

    prompt_lengths: Tensor
    """[prompts] on the CPU."""
    group_sizes: Tensor
    """[prompts] completions of each, on the CPU."""
    lengths: Tensor
    """[completions] tokens of each, on the CPU."""
    numbers: Tensor
    """Parts of the attention, see ``attention_parts``; on the CPU."""
    index: Tensor
    """Their places in the row, on the device of the tokens."""

    def to(self, device: torch.device) -> SharedPrompts:
        """The same layout for tokens on ``device``."""
        return SharedPrompts(self.prompt_lengths, self.group_sizes, self.lengths, self.numbers, self.index.to(device))

    @cached_property
    def parts(self) -> RowParts:
        """What the row's attention is put together from."""
        return RowParts(self.numbers, self.index)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None) -> Tensor:
        """Outputs [1, L, heads, D] of queries [1, heads, L, D], keys and values [1, kv_heads, L, D]."""
        if query.device.type != "cpu":
            return _UNCOMPILED(self, query, key, value, scaling=scaling, window=window)
        if torch.compiler.is_compiling():
            return _compiled_parts(query, key, value, self.numbers, self.index, scaling, window)[0]
        return _InParts.apply(query, key, value, self.parts, scaling, window)  # pyright: ignore


def attend_by_prompt(
    layout: SharedPrompts, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None
) -> Tensor:
    """``SharedPrompts.attend`` by torch's own attention, for devices whose kernels give no log-sum-exp alike.

    A prompt by itself; its completions as rows that are padded on the right, each over a copy of the prompt's keys and its own.
    """
    shared = query.shape[1] // key.shape[1]
    query, key, value = query[0], key[0].repeat_interleave(shared, 0), value[0].repeat_interleave(shared, 0)
    outputs: list[Tensor] = []
    at = row = 0
    for prompt, size in zip(layout.prompt_lengths.tolist(), layout.group_sizes.tolist(), strict=True):
        lengths = layout.lengths[row : row + size].to(query.device)
        here = slice(at, at + prompt)
        mask = None if window is None or window >= prompt else _lower_right(prompt, 0, window, query.device)
        outputs.append(
            scaled_dot_product_attention(
                query[:, here], key[:, here], value[:, here], attn_mask=mask, is_causal=mask is None, scale=scaling
            )
        )
        at, row, width = at + prompt, row + size, int(lengths.max()) if size else 0
        if width == 0:
            continue
        columns = torch.arange(width, device=query.device)
        real = columns < lengths.unsqueeze(1)
        # what stands behind a completion's end is seen by nothing before it
        places = (at + lengths.cumsum(0) - lengths).unsqueeze(1) + columns
        own = [tensor[:, places.clamp(max=query.shape[1] - 1)].transpose(0, 1) for tensor in (query, key, value)]
        keys, values = (
            torch.cat([tensor[:, here].expand(size, -1, -1, -1), mine], dim=2)
            for tensor, mine in ((key, own[1]), (value, own[2]))
        )
        mask = _lower_right(width, prompt, window, query.device)
        found = scaled_dot_product_attention(own[0], keys, values, attn_mask=mask, scale=scaling)
        outputs.append(found.transpose(0, 1)[:, real])
        at += int(lengths.sum())
    return torch.cat(outputs, dim=1).transpose(0, 1).unsqueeze(0)


_UNCOMPILED: Any = torch.compiler.disable(attend_by_prompt)


def _lower_right(queries: int, before: int, window: int | None, device: torch.device) -> Tensor:
    """[queries, before + queries] what the last tokens of a sequence see of it."""
    distance = torch.arange(before, before + queries, device=device).unsqueeze(1) - torch.arange(
        before + queries, device=device
    )
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


class _InParts(torch.autograd.Function):
    """The parts put together, with one node for all of them in the graph."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: RowParts, scaling: float | None, window: int | None
    ) -> Tensor:
        out, lse = parts_forward(_tokens(query), _tokens(key), _tokens(value), parts, scaling, window)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.how = (parts, scaling, window)
        return out.unsqueeze(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return *_backward(grad, *ctx.saved_tensors, *ctx.how), None, None, None


@torch.library.custom_op("maxent_grpo::attention_in_parts", mutates_args=())
def _compiled_parts(
    query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, index: Tensor, scaling: float | None, window: int | None
) -> tuple[Tensor, Tensor]:
    """The same as an operation that a compiler leaves as it is: outputs [1, L, heads, D] and log-sum-exps [L, heads, 1]."""
    parts = RowParts(numbers, index)
    out, lse = parts_forward(_tokens(query), _tokens(key), _tokens(value), parts, scaling, window)
    return out.unsqueeze(0), lse


@_compiled_parts.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, index: Tensor, scaling: float | None, window: int | None
) -> tuple[Tensor, Tensor]:
    _, heads, length, size = query.shape
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    return query.new_empty((1, length, heads, size)), query.new_empty((length, heads, 1), dtype=wide)


@torch.library.custom_op("maxent_grpo::attention_in_parts_backward", mutates_args=())
def _compiled_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, numbers: Tensor, index: Tensor,
    scaling: float | None, window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _backward(grad, query, key, value, out[0], lse, RowParts(numbers, index), scaling, window)


@_compiled_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, numbers: Tensor, index: Tensor,
    scaling: float | None, window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    def like(tensor: Tensor) -> Tensor:
        _, heads, length, size = tensor.shape
        return tensor.new_empty((1, length, heads, size)).transpose(1, 2)

    return like(query), like(key), like(value)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, scaling, window = inputs
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])
    ctx.how = (scaling, window)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> Any:
    return *_compiled_backward(grad, *ctx.saved_tensors, *ctx.how), None, None, None, None


_compiled_parts.register_autograd(_differentiate, setup_context=_keep_for_backward)


def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, parts: RowParts,
    scaling: float | None, window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    saved = (_tokens(query), _tokens(key), _tokens(value), out, lse)
    grads = parts_backward(grad[0].contiguous(), saved, parts, scaling, window)
    return tuple(found.transpose(0, 1).unsqueeze(0) for found in grads)  # pyright: ignore[reportReturnType]


def _tokens(tensor: Tensor) -> Tensor:
    """[L, heads, D] of [1, heads, L, D]."""
    return tensor[0].transpose(0, 1)


def lay_out(prompt_lengths: Tensor, group_sizes: Tensor, lengths: Tensor) -> SharedPrompts:
    """The layout of prompts [p] with ``group_sizes`` [p] completions each, whose ``lengths`` follow in one list."""
    group = torch.arange(len(group_sizes)).repeat_interleave(group_sizes)
    behind = torch.zeros_like(prompt_lengths).index_add_(0, group, lengths)
    begins = (prompt_lengths + behind).cumsum(0) - prompt_lengths - behind
    starts = prompt_lengths.cumsum(0)[group] + lengths.cumsum(0) - lengths
    prompts, completions = Runs(begins, prompt_lengths), Runs(starts, lengths)
    number_in_group = torch.arange(len(lengths)) - (group_sizes.cumsum(0) - group_sizes)[group] + 1
    total = int((prompt_lengths + behind).sum())
    places = Places(*(torch.zeros(total, dtype=torch.long) for _ in Places._fields))
    at, number = _places(prompts)
    places.position[at] = number
    at, number = _places(completions)
    places.number[at] = number
    places.position[at] = number + prompt_lengths[group].repeat_interleave(lengths)
    places.segment[at] = number_in_group.repeat_interleave(lengths)
    numbers, index = cut_parts(prompts, Runs(begins + prompt_lengths, behind), completions, group, places)
    return SharedPrompts(prompt_lengths, group_sizes, lengths, numbers, index)


def _places(runs: Runs) -> tuple[Tensor, Tensor]:
    """Of every token of some runs, where it stands and its number in the run."""
    number = torch.arange(int(runs.size.sum())) - (runs.size.cumsum(0) - runs.size).repeat_interleave(runs.size)
    return runs.first.repeat_interleave(runs.size) + number, number

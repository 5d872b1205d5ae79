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
from torch.nn.functional import pad, scaled_dot_product_attention

from maxent_grpo.training.scoring.attention_parts import (
    Part,
    Runs,
    cut_parts,
    parts_backward,
    parts_forward,
    read_parts,
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
        return SharedPrompts(
            self.prompt_lengths, self.group_sizes, self.lengths, self.numbers, self.index.to(device)
        )

    @cached_property
    def parts(self) -> list[Part]:
        """What the row's attention is put together from."""
        return read_parts(self.numbers, self.index)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None) -> Tensor:
        """Outputs [1, L, heads, D] of queries [1, heads, L, D], keys and values [1, kv_heads, L, D].

        Raises:
            ValueError: there are not as many tokens as in the layout.
        """
        return _InParts.apply(query, key, value, self, scaling, window)  # pyright: ignore


class _InParts(torch.autograd.Function):
    """The parts put together, with one node for all of them in the graph."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: SharedPrompts, scaling: float | None, window: int | None
    ) -> Tensor:
        tokens = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
        out, lse = parts_forward(tokens[0], tokens[1], tokens[2], layout.parts, scaling, window)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.how = (layout.parts, scaling, window)
        return out.unsqueeze(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, out, lse = ctx.saved_tensors
        saved = (query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), out, lse)
        grads = parts_backward(grad[0].contiguous(), saved, *ctx.how)
        return (*(found.transpose(0, 1).unsqueeze(0) for found in grads), None, None, None)


def lay_out(prompt_lengths: Tensor, group_sizes: Tensor, lengths: Tensor) -> SharedPrompts:
    """The layout of prompts [p] with ``group_sizes`` [p] completions each, whose ``lengths`` follow in one list."""
    behind = torch.stack([part.sum() for part in lengths.split(group_sizes.tolist())])
    before = (prompt_lengths + behind).cumsum(0) - prompt_lengths - behind
    group = torch.arange(len(group_sizes)).repeat_interleave(group_sizes)
    starts = (prompt_lengths.cumsum(0)[group]) + lengths.cumsum(0) - lengths
    total = int((prompt_lengths + behind).sum())
    completion = torch.arange(len(lengths)).repeat_interleave(lengths)
    numbering = torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths)[completion]
    offsets = torch.zeros(total, dtype=torch.long)
    offsets[starts[completion] + numbering] = numbering
    numbers, index = cut_parts(
        Runs(before, prompt_lengths), Runs(before + prompt_lengths, behind), Runs(starts, lengths), offsets
    )
    return SharedPrompts(prompt_lengths, group_sizes, lengths, numbers, index)

"""Attention of completions to prompts that are kept once: a prompt's completions are the queries of one matrix product."""

from __future__ import annotations

import torch
from torch import Tensor

# the CPU's fused kernel, the one that sdpa itself runs there; sdpa keeps the normaliser to itself
_attention_and_normaliser = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class PromptSlots:
    """Prompts and the completions that continue them, each prompt with the same number of slots for completions.

    Slots that completions have left are computed along and thrown away: they cost less than a product for each prompt.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], padding: Tensor | None, prompts: Tensor) -> None:
        """Give each completion a slot of its prompt.

        Args:
            layers: keys and values of each layer [P, kv_heads, width, D].
            padding: minus infinity where a prompt has no token, else 0; None when all have [P, width].
            prompts: the prompt of each completion [rows].
        """
        self._layers = layers
        self._padding = padding
        self._prompts = prompts
        self._arrange()

    def keep(self, rows: Tensor) -> None:
        """Only the completions ``rows`` are left, in this order."""
        self._prompts = self._prompts[rows]
        self._arrange()

    def merged(
        self, query: Tensor, key: Tensor, value: Tensor, layer: int, *, scaling: float | None, seen: int | None
    ) -> Tensor:
        """Attention of each completion's queries over its own keys and its prompt's [rows, kv_heads, group, D].

        With the sums Z of exp(score) over either part the attention over both is o + Z_p / (Z_p + Z) (o_p - o).

        Args:
            query: [rows, kv_heads, group, D].
            key: own keys [rows, kv_heads, K, D].
            value: own values [rows, kv_heads, K, D].
            layer: whose prompts.
            scaling: factor of the scores; None is 1 / sqrt(D).
            seen: how many of the prompt's last positions are seen; None sees all.
        """
        own, own_log_sum = _attention_and_normaliser(query, key, value, 0.0, False, scale=scaling)
        if seen is not None and seen <= 0:
            return own
        keys, values = (last(states, seen) for states in self._layers[layer])
        padding = None if self._padding is None else last(self._padding[:, None, None], seen, dim=3)
        queries = query if self._slot_rows is None else query.index_select(0, self._slot_rows)
        behind, log_sum = _attention_and_normaliser(
            queries.unflatten(0, (-1, self._num_slots)).transpose(1, 2).flatten(2, 3),
            keys, values, 0.0, False, attn_mask=padding, scale=scaling,
        )  # fmt: skip
        behind, log_sum = self._by_row(behind, query.shape), self._by_row(log_sum.unsqueeze(-1), query.shape)
        share = torch.sigmoid(log_sum - own_log_sum.unsqueeze(-1)).to(own.dtype)
        return torch.lerp(own, behind, share)

    def _by_row(self, states: Tensor, shape: torch.Size) -> Tensor:
        """Results of slots [P, kv_heads, slots * group, D] for each completion [rows, kv_heads, group, D]."""
        by_slot = states.unflatten(2, (self._num_slots, shape[2])).transpose(1, 2).flatten(0, 1)
        return by_slot if self._slot_rows is None else by_slot.index_select(0, self._slots)

    def _arrange(self) -> None:
        prompts, device = self._prompts, self._prompts.device
        counts = torch.bincount(prompts, minlength=self._layers[0][0].shape[0])
        if 2 * int((counts > 0).sum()) <= len(counts):
            # prompts whose completions have all ended are given up when half of them are: few copies in all
            held = counts.nonzero().squeeze(1)
            self._layers = [(keys[held], values[held]) for keys, values in self._layers]
            self._padding = None if self._padding is None else self._padding[held]
            places = torch.zeros_like(counts)
            places[held] = torch.arange(len(held), device=device)
            prompts, counts = places[prompts], counts[held]
            self._prompts = prompts
        self._num_slots = int(counts.max())
        ordered, order = prompts.sort(stable=True)
        rows = torch.arange(len(prompts), device=device)
        rank = rows - (counts.cumsum(dim=0) - counts)[ordered]
        self._slots = torch.empty_like(order).scatter_(0, order, ordered * self._num_slots + rank)
        self._slot_rows: Tensor | None = None
        if len(rows) < len(counts) * self._num_slots or bool((self._slots != rows).any()):
            free = torch.zeros(len(counts) * self._num_slots, dtype=torch.long, device=device)
            self._slot_rows = free.scatter_(0, self._slots, rows)


def last(states: Tensor, count: int | None, dim: int = 2) -> Tensor:
    """The last ``count`` places of an axis, at most all; None is all of them."""
    size = states.shape[dim]
    return states if count is None or count >= size else states.narrow(dim, size - count, count)

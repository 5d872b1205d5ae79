"""Prompts padded on the left to one length, whose cache is copied for each completion: for any model with a transformers cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from maxent_grpo.errors import GenerationError
from maxent_grpo.training.forward import accepted
from maxent_grpo.training.generation.kv_cache import drop_rows, expanded_cache


class PaddedPrompts:
    """The cache of padded prompts."""

    def __init__(self, cache: Cache, attention_mask: Tensor | None, lengths: Tensor, width: int) -> None:
        """Hold what the pass over the prompts left.

        Args:
            cache: keys and values of the prompts.
            attention_mask: marks prompt tokens; None when no row is padded [P, width].
            lengths: prompt tokens [P].
            width: length of the longest prompt.
        """
        self.cache = cache
        self.attention_mask = attention_mask
        self.lengths = lengths
        self.width = width

    def continued(self, rows: Tensor, room: int) -> PaddedCompletions:
        """Completions of up to ``room`` tokens with copies of their prompts' cache."""
        mask = self.attention_mask
        if mask is not None:
            # all of the completion's columns at once: a step then takes a wider view instead of a copy
            mask = mask.index_select(0, rows)
            mask = torch.cat([mask, mask.new_ones((rows.shape[0], room))], dim=1)
        cache = expanded_cache(self.cache, rows, room)
        return PaddedCompletions(cache, mask, self.lengths.index_select(0, rows), self.width)


class PaddedCompletions:
    """Running completions behind padded prompts."""

    def __init__(self, cache: Cache, mask: Tensor | None, lengths: Tensor, width: int) -> None:
        self._cache = cache
        self._mask = mask
        self._lengths = lengths
        self._width = width

    def advance(self, model: PreTrainedModel, tokens: Tensor, step: int) -> Tensor:
        """Feed token ``step`` of each completion [rows]; returns the logits of token ``step + 1`` [rows, V]."""
        position_ids = mask = None
        if self._mask is not None:
            position_ids = (self._lengths + step).unsqueeze(1)
            mask = self._mask[:, : self._width + step + 1]
        outputs = model(
            input_ids=tokens.unsqueeze(1),
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            **accepted(model, {"position_ids": position_ids, "logits_to_keep": 1}),
        )
        return outputs.logits[:, -1]

    def drop(self, dropped: Tensor) -> Tensor:
        """Drop the completions that are marked; returns the old rows of those that are left, which change their order."""
        kept = drop_rows(self._cache, dropped)
        self._lengths = self._lengths[kept]
        if self._mask is not None:
            self._mask = self._mask[kept]
        return kept


def run_prompts(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], pad_token_id: int, device: torch.device
) -> tuple[Tensor, PaddedPrompts]:
    """Run prompts as one batch; returns the logits behind each [P, V], and their cache."""
    sizes = [len(prompt) for prompt in prompts]
    width = max(sizes)
    padded = [[pad_token_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    token_ids = torch.tensor(padded, device=device)
    lengths = torch.tensor(sizes, device=device)
    mask = position_ids = None
    if min(sizes) < width:
        # without padding the attention kernels need no mask, which is the faster path
        columns = torch.arange(width, device=device)
        mask = (columns >= width - lengths.unsqueeze(1)).long()
        position_ids = (mask.cumsum(dim=-1) - 1).clamp_min(0)
    controls = accepted(model, {"position_ids": position_ids, "logits_to_keep": 1})
    outputs = model(input_ids=token_ids, attention_mask=mask, use_cache=True, **controls)
    if not isinstance(outputs.past_key_values, Cache):
        raise GenerationError(
            f"{type(model).__name__} returned {type(outputs.past_key_values).__name__} for its key-value cache, so its "
            "completions cannot share a prompt; generation=local needs a causal language model with a transformers cache"
        )
    return outputs.logits[:, -1], PaddedPrompts(outputs.past_key_values, mask, lengths, width)

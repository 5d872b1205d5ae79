"""The sequences of a step as tensors, and how they are cut into slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maxent_grpo.training.types.rewards import CompletionRecord, PromptCacheEntry, ScoreBatch
from maxent_grpo.training.types.runtime import BatchingSettings


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows first .. last - 1 of a step's sequences."""

    first: int
    last: int

    @property
    def slice(self) -> slice:
        """The range as an index."""
        return slice(self.first, self.last)

    def __len__(self) -> int:
        return self.last - self.first


def build_score_batch(
    prompts: Sequence[str],
    groups: Sequence[Sequence[CompletionRecord]],
    batching: BatchingSettings,
    *,
    pad_token_id: int,
    max_prompt_len: int,
) -> ScoreBatch:
    """Tensors of all completions [N, T], padded on the right, with the tokenised prompt of each; one look-up a prompt.

    The mask comes from lengths, so that an end token that is also the pad token stays trained.
    """
    lookup = _required(batching.prompt_length_cache_get)
    entries: list[PromptCacheEntry] = []
    records: list[CompletionRecord] = []
    for prompt, group in zip(prompts, groups, strict=True):
        entry = lookup(prompt)
        entries.extend(entry for _ in group)
        records.extend(group)
    lengths = torch.tensor([len(record.token_ids) for record in records], dtype=torch.long)
    width = int(lengths.max()) if records else 1
    mask = torch.arange(width) < lengths.unsqueeze(-1)
    ids = torch.full(mask.shape, pad_token_id, dtype=torch.long)
    ids[mask] = torch.tensor([token for record in records for token in record.token_ids], dtype=torch.long)
    return ScoreBatch(
        prompt_entries=entries,
        completion_ids=ids,
        completion_attention_mask=mask,
        pad_token_id=pad_token_id,
        max_prompt_len=max_prompt_len,
        slice_size=batching.score_slice,
        total_sequences=len(records),
        score_tail_tokens=batching.score_tail_tokens,
    )


def sampled_logp_tensor(batch: ScoreBatch, records: Sequence[CompletionRecord]) -> tuple[Tensor, Tensor]:
    """Behaviour log-probs as the sampler reported them [N, T], and which tokens have one [N, T].

    A token that was sampled has a finite log-prob: None, NaN and infinities say that the sampler does not know it.
    """
    mask = batch.completion_attention_mask
    has_logp = torch.tensor([record.behaviour_logp is not None for record in records], dtype=torch.bool)
    given = mask & has_logp.unsqueeze(-1)
    logp = torch.zeros(mask.shape, dtype=torch.float64)
    reported = [value for record in records for value in record.behaviour_logp or []]
    logp[given] = torch.tensor([math.nan if value is None else value for value in reported], dtype=logp.dtype)
    known = given & logp.isfinite()
    return logp.masked_fill(~known, 0.0), known


def tail_window(mask: Tensor, tail: int | None) -> Tensor:
    """The last ``tail`` true places of each row of a right-padded mask; all of them when ``tail`` is None."""
    if tail is None:
        return mask
    from_end = mask.sum(dim=-1, keepdim=True) - torch.arange(mask.shape[1], device=mask.device)
    return mask & (from_end <= tail)


def plan_slices(batch: ScoreBatch, within: RowRange, max_tokens: int) -> list[RowRange]:
    """Cut a loader batch into slices: by the token budget when it is above 0, else by ``slice_size`` rows, else not.

    A slice's tokens are its completions plus one copy of each prompt in it. A single row above the budget is a slice of
    its own: no row is dropped or cut.
    """
    if max_tokens > 0:
        return _slices_by_tokens(batch, within, max_tokens)
    size = batch.slice_size if batch.slice_size > 0 else max(len(within), 1)
    return [RowRange(start, min(start + size, within.last)) for start in range(within.first, within.last, size)]


def _slices_by_tokens(batch: ScoreBatch, within: RowRange, max_tokens: int) -> list[RowRange]:
    lengths = batch.completion_attention_mask.sum(dim=-1).tolist()
    slices: list[RowRange] = []
    start, used = within.first, 0
    for row in range(within.first, within.last):
        entry = batch.prompt_entries[row]
        opens_prompt = row == start or entry is not batch.prompt_entries[row - 1]
        cost = lengths[row] + (entry.length if opens_prompt else 0)
        if row > start and used + cost > max_tokens:
            slices.append(RowRange(start, row))
            start, used, cost = row, 0, lengths[row] + entry.length
        used += cost
    slices.append(RowRange(start, within.last))
    return slices


def whole_groups(slices: Sequence[RowRange], group_size: int) -> bool:
    """Whether no slice cuts a group, so that each holds what the listwise term needs."""
    return all(piece.first % group_size == 0 and piece.last % group_size == 0 for piece in slices)


def _required(lookup: Callable[[str], PromptCacheEntry] | None) -> Callable[[str], PromptCacheEntry]:
    assert lookup is not None, "setup gives the batching settings the prompt cache"
    return lookup

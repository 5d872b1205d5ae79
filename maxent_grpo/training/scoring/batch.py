"""The sequences of a step as tensors, and how they are cut into slices."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    starts: list[int] = []
    for prompt, group in zip(prompts, groups, strict=True):
        entry = lookup(prompt)
        starts.append(len(records))
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
        group_starts=tuple(starts),
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


def plan_slices(batch: ScoreBatch, within: RowRange, max_tokens: int, *, shared: bool = True) -> list[RowRange]:
    """Cut a loader batch into slices of at most ``slice_size`` rows and ``max_tokens`` tokens; 0 is no limit.

    By tokens it is cut between groups, a slice ending where the next whole group would not fit. A group is cut only where
    it alone is too large, so that its prompt is run once and a listwise term finds its scores together. Its parts may have as many
    tokens of completions as of the prompt, whatever the budget: a long prompt would else be run for each completion. A single
    row above the budget is a slice of its own: no row is dropped or cut.

    Args:
        batch: the sequences.
        within: the rows to cut.
        max_tokens: what a slice may feed to the model [tokens].
        shared: the completions of a group stand behind one copy of their prompt; else each row is padded to the longest.
    """
    if not len(within):
        return []
    size = batch.slice_size if batch.slice_size > 0 else len(within)
    blocks = [RowRange(start, min(start + size, within.last)) for start in range(within.first, within.last, size)]
    if max_tokens <= 0:
        return blocks
    lengths = batch.completion_attention_mask.sum(dim=-1).tolist()

    def fits(rows: RowRange) -> bool:
        if not shared:
            return _padded_tokens(batch, lengths, rows) <= max_tokens
        prompts = [batch.prompt_entries[part.first].length for part in _groups_within(batch, rows)]
        limit = max(max_tokens, budget_of_group(prompts[0])) if len(prompts) == 1 else max_tokens
        return sum(prompts) + sum(lengths[rows.slice]) <= limit

    slices: list[RowRange] = []
    for block in blocks:
        for joined in _joined(_groups_within(batch, block), fits):
            rows = [RowRange(row, row + 1) for row in range(joined.first, joined.last)]
            slices += [joined] if fits(joined) else _joined(rows, fits)
    return slices


def budget_of_group(prompt: int) -> int:
    """Tokens that a part of a group may always have: a prompt that is run again costs no more than what stands behind it."""
    return 2 * prompt


def _joined(parts: Sequence[RowRange], fits: Callable[[RowRange], bool]) -> list[RowRange]:
    """Consecutive parts put together, each time as many as fit; one that does not stays by itself."""
    joined = [parts[0]]
    for part in parts[1:]:
        both = RowRange(joined[-1].first, part.last)
        if fits(both):
            joined[-1] = both
        else:
            joined.append(part)
    return joined


def _groups_within(batch: ScoreBatch, within: RowRange) -> list[RowRange]:
    """The groups, or parts of groups, among some rows."""
    inside = slice(*(bisect_right(batch.group_starts, end) for end in (within.first, within.last - 1)))
    starts = [within.first, *batch.group_starts[inside]]
    return [RowRange(first, last) for first, last in zip(starts, [*starts[1:], within.last], strict=True)]


def _padded_tokens(batch: ScoreBatch, lengths: Sequence[int], rows: RowRange) -> int:
    """What scoring some rows, each padded to the longest, feeds to the model [tokens]."""
    longest = max(entry.length for entry in batch.prompt_entries[rows.slice])
    return len(rows) * (longest + max(lengths[rows.slice]))


def select_groups(batch: ScoreBatch, groups: Tensor, group_size: int) -> ScoreBatch:
    """The sequences of some groups of equal size; ``groups`` [P] marks them."""
    if bool(groups.all()):
        return batch
    rows = groups.repeat_interleave(group_size)
    return replace(
        batch,
        prompt_entries=[entry for entry, kept in zip(batch.prompt_entries, rows.tolist(), strict=True) if kept],
        completion_ids=batch.completion_ids[rows],
        completion_attention_mask=batch.completion_attention_mask[rows],
        total_sequences=int(rows.sum()),
        group_starts=tuple(range(0, int(rows.sum()), group_size)),
    )


def cut_groups(slices: Sequence[RowRange], group_size: int) -> list[RowRange]:
    """The slices that hold part of a group that another slice holds the rest of."""
    cut = {row // group_size for piece in slices for row in (piece.first, piece.last) if row % group_size}
    return [piece for piece in slices if cut & set(range(piece.first // group_size, -(-piece.last // group_size)))]


def _required(lookup: Callable[[str], PromptCacheEntry] | None) -> Callable[[str], PromptCacheEntry]:
    assert lookup is not None, "setup gives the batching settings the prompt cache"
    return lookup

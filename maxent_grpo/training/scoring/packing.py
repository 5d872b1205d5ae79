"""How a slice enters the model: all of it in one row, one masked row per prompt, or one padded row per sequence.

In the first two the completions of a prompt follow one copy of it; each restarts its positions after the prompt and sees only
the prompt and itself. In one row that is a matter of the layout that the attention gets, so that nothing is padded and no mask
for pairs of tokens is made; masked rows serve models that take masks only. All give the same log-probabilities; sharing feeds
P + G * C tokens a group instead of G * (P + C).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.scoring.shared_attention import SharedPrompts, lay_out
from maxent_grpo.training.types.rewards import PromptCacheEntry, ScoreBatch

PADDING = 1.1
"""Most positions that padded rows of one pass may feed for each real token."""


class Sharing(StrEnum):
    """How completions share their prompt under a model."""

    layout = "layout"
    """The model's attention takes layouts."""
    masks = "masks"
    """It takes a mask for every pair of positions."""
    none = "none"
    """Neither: each completion has a prompt of its own."""


@dataclass(frozen=True)
class ModelInputs:
    """One forward pass, and where the log-probability of each completion token is to be read.

    Token m of the chunk, completion token ``column[m]`` of chunk row ``row[m]``, is predicted by the logits at
    ``[model_row[m], place[m]]`` of the last ``num_kept`` positions; where every completion token is fed itself, it stands at
    ``[model_row[m], fed_at[m]]``.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    num_kept: int
    model_row: Tensor
    place: Tensor
    row: Tensor
    column: Tensor
    target_ids: Tensor
    fed_at: Tensor | None = None
    layout: SharedPrompts | None = None
    """Who attends to whom, for models that take layouts; None leaves it to the mask."""
    order: Tensor | None = None
    """[rows] row of the slice that each row of the chunk is, where these are not consecutive."""
    num_real: int = 0
    """Positions fed to the model that are tokens of a sequence rather than padding."""

    @property
    def num_fed(self) -> int:
        """Positions fed to the model, padding included."""
        return self.input_ids.numel()

    @property
    def num_rows(self) -> int:
        """Rows of the chunk, one a completion."""
        return int(self.row.max()) + 1

    def to(self, device: torch.device) -> ModelInputs:
        """The same inputs on ``device``."""
        movable = {name: value for name, value in vars(self).items() if isinstance(value, Tensor | SharedPrompts)}
        return replace(self, **{name: value.to(device) for name, value in movable.items()})


def pad_rows(batch: ScoreBatch, rows: RowRange) -> ModelInputs:
    """One row per sequence in one pass: the prompt padded on the left, the completion on the right, as TRL does."""
    entries = batch.prompt_entries[rows.slice]
    mask = batch.completion_attention_mask[rows.slice]
    width = int(mask.sum(dim=-1).max())
    ids, mask = batch.completion_ids[rows.slice, :width], mask[:, :width]
    prompt_width = max(entry.length for entry in entries)
    prompt_ids = torch.full((len(entries), prompt_width), batch.pad_token_id, dtype=torch.long)
    prompt_mask = torch.zeros((len(entries), prompt_width), dtype=torch.long)
    for row, entry in enumerate(entries):
        prompt_ids[row, prompt_width - entry.length :] = torch.tensor(entry.input_ids, dtype=torch.long)
        prompt_mask[row, prompt_width - entry.length :] = torch.tensor(entry.attention_mask, dtype=torch.long)
    attention = torch.cat([prompt_mask, mask.long()], dim=1)
    row, column = mask.nonzero(as_tuple=True)
    return ModelInputs(
        input_ids=torch.cat([prompt_ids, ids], dim=1),
        attention_mask=attention,
        position_ids=(attention.cumsum(dim=1) - 1).clamp(min=0),
        num_kept=width + 1,
        model_row=row,
        place=column,
        row=row,
        column=column,
        target_ids=ids[row, column],
        fed_at=prompt_width + column,
        num_real=int(attention.sum()),
    )


def pad_by_length(batch: ScoreBatch, rows: RowRange, most_rows: int, max_tokens: int) -> list[ModelInputs]:
    """One row per sequence in several passes: rows of like length together, padded on the right.

    The longest come first, and a pass ends before it feeds more than ``PADDING`` positions a real token, ``most_rows`` rows or
    ``max_tokens`` positions (0 is no limit).
    """
    prompts = torch.tensor([entry.length for entry in batch.prompt_entries[rows.slice]])
    totals = prompts + batch.completion_attention_mask[rows.slice].sum(dim=-1)
    order = totals.argsort(descending=True, stable=True)
    passes: list[list[int]] = []
    width = real = 0
    for row, total in zip(order.tolist(), totals[order].tolist(), strict=True):
        fed = (len(passes[-1]) + 1) * width if passes else 0
        is_full = not passes or len(passes[-1]) == most_rows or (0 < max_tokens < fed)
        if is_full or fed > PADDING * (real + total):
            passes.append([])
            width, real = total, 0
        passes[-1].append(row)
        real += total
    return [_pad_right(batch, rows.first, torch.tensor(chosen)) for chosen in passes]


def _pad_right(batch: ScoreBatch, first: int, order: Tensor) -> ModelInputs:
    """One pass over rows ``first + order`` of the batch, each padded behind its end."""
    entries = [batch.prompt_entries[first + row] for row in order.tolist()]
    mask, completions = batch.completion_attention_mask[first + order], batch.completion_ids[first + order]
    prompts = torch.tensor([entry.length for entry in entries])
    totals = prompts + mask.sum(dim=-1)
    columns = torch.arange(int(totals.max()))
    ids = torch.full((len(entries), len(columns)), batch.pad_token_id, dtype=torch.long)
    for number, entry in enumerate(entries):
        ids[number, : entry.length] = torch.tensor(entry.input_ids, dtype=torch.long)
    row, column = mask.nonzero(as_tuple=True)
    at = prompts[row] + column
    ids[row, at] = completions[row, column]
    first_kept = int(prompts.min()) - 1
    return ModelInputs(
        input_ids=ids,
        attention_mask=(columns < totals.unsqueeze(1)).long(),
        position_ids=torch.minimum(columns, totals.unsqueeze(1) - 1),
        num_kept=len(columns) - first_kept,
        model_row=row,
        place=at - 1 - first_kept,
        row=row,
        column=column,
        target_ids=completions[row, column],
        fed_at=at,
        order=order,
        num_real=int(totals.sum()),
    )


def pack_rows(batch: ScoreBatch, rows: RowRange) -> ModelInputs:
    """All prompts and completions in one row without padding: a prompt, its completions, the next prompt, ...

    A group may be cut, its part then brings its own copy of the prompt.
    """
    packs = _group_rows(batch.prompt_entries[rows.slice])
    prompts, sizes = _prompt_lengths(packs), torch.tensor([last - first for _, first, last in packs])
    mask = batch.completion_attention_mask[rows.slice]
    lengths = mask.sum(dim=-1)
    group = torch.arange(len(packs)).repeat_interleave(sizes)
    starts = prompts.cumsum(0)[group] + lengths.cumsum(0) - lengths
    behind = torch.zeros_like(prompts).index_add_(0, group, lengths)
    begins = (prompts + behind).cumsum(0) - prompts - behind

    row, column = mask.nonzero(as_tuple=True)
    target_ids = batch.completion_ids[rows.slice][row, column]
    at, pack = starts[row] + column, group[row]
    total = int(prompts.sum() + lengths.sum())
    ids, positions = torch.empty(total, dtype=torch.long), torch.empty(total, dtype=torch.long)
    for (entry, _, _), begin in zip(packs, begins.tolist(), strict=True):
        ids[begin : begin + entry.length] = torch.tensor(entry.input_ids, dtype=torch.long)
        positions[begin : begin + entry.length] = torch.arange(entry.length)
    ids[at], positions[at] = target_ids, prompts[pack] + column
    place = torch.where(column == 0, begins[pack] + prompts[pack], at) - 1
    first_kept = int(prompts[0]) - 1
    return ModelInputs(
        input_ids=ids.unsqueeze(0),
        # of four axes, which models hand through as it is: no mask is made, as the layout says what is seen
        attention_mask=torch.zeros(1, 1, 1, 1),
        position_ids=positions.unsqueeze(0),
        num_kept=total - first_kept,
        model_row=torch.zeros_like(row),
        place=place - first_kept,
        row=row,
        column=column,
        target_ids=target_ids,
        fed_at=at,
        layout=lay_out(prompts, sizes, lengths),
        num_real=total,
    )


def _prompt_lengths(packs: Sequence[tuple[PromptCacheEntry, int, int]]) -> Tensor:
    return torch.tensor([entry.length for entry, _, _ in packs])


def mask_rows(batch: ScoreBatch, rows: RowRange, dtype: torch.dtype) -> ModelInputs:
    """One row per prompt: the prompt, then its completions, each behind the prompt only, by a mask for every pair of positions.

    Args:
        batch: the step's sequences.
        rows: the sequences to pack; a group may be cut, its part then brings its own copy of the prompt.
        dtype: type of the additive attention mask, the model's.
    """
    packs = _group_rows(batch.prompt_entries[rows.slice])
    prompt_lengths = _prompt_lengths(packs)
    pack_sizes = torch.tensor([last - first for _, first, last in packs])
    lengths = batch.completion_attention_mask[rows.slice].sum(dim=-1)
    # of each row: the pack it is in, its number in there from 1 on, and where its first token stands
    pack_of_row = torch.arange(len(packs)).repeat_interleave(pack_sizes)
    first_rows = (pack_sizes.cumsum(0) - pack_sizes)[pack_of_row]
    segment_of_row = torch.arange(len(rows)) - first_rows + 1
    before = lengths.cumsum(0) - lengths
    start_of_row = prompt_lengths[pack_of_row] + before - before[first_rows]

    row, column = batch.completion_attention_mask[rows.slice].nonzero(as_tuple=True)
    model_row, at = pack_of_row[row], start_of_row[row] + column
    width = int((start_of_row + lengths).max())
    ids = torch.full((len(packs), width), batch.pad_token_id, dtype=torch.long)
    positions = torch.zeros((len(packs), width), dtype=torch.long)
    segments = torch.full((len(packs), width), -1, dtype=torch.long)
    for number, (entry, _, _) in enumerate(packs):
        ids[number, : entry.length] = torch.tensor(entry.input_ids, dtype=torch.long)
        positions[number, : entry.length] = torch.arange(entry.length)
        segments[number, : entry.length] = 0
    ids[model_row, at] = batch.completion_ids[rows.slice][row, column]
    positions[model_row, at] = prompt_lengths[model_row] + column
    segments[model_row, at] = segment_of_row[row]
    # the first token is predicted at the prompt's end, every other one at the token before it
    place = torch.where(column == 0, prompt_lengths[model_row], at) - 1
    first_kept = min(entry.length for entry, _, _ in packs) - 1
    return ModelInputs(
        input_ids=ids,
        attention_mask=_packed_mask(segments, dtype),
        position_ids=positions,
        num_kept=width - first_kept,
        model_row=model_row,
        place=place - first_kept,
        row=row,
        column=column,
        target_ids=batch.completion_ids[rows.slice][row, column],
        fed_at=at,
        num_real=int(prompt_lengths.sum() + lengths.sum()),
    )


def _group_rows(entries: list[PromptCacheEntry]) -> list[tuple[PromptCacheEntry, int, int]]:
    """Runs of consecutive rows that share one prompt object: (prompt, first row, last row + 1)."""
    runs: list[tuple[PromptCacheEntry, int, int]] = []
    for row, entry in enumerate(entries):
        if runs and runs[-1][0] is entry:
            runs[-1] = (entry, runs[-1][1], row + 1)
        else:
            runs.append((entry, row, row + 1))
    return runs


def _packed_mask(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask [rows, 1, L, L]: causal, and only within the prompt (segment 0) and one's own segment.

    Padding (segment -1) sees itself, so that no row of the softmax is empty.
    """
    width = segments.shape[1]
    causal = torch.ones((width, width), dtype=torch.bool).tril()
    query, key = segments.unsqueeze(2), segments.unsqueeze(1)
    visible = causal & ((key == query) | ((key == 0) & (query > 0)))
    blocked = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    return blocked.unsqueeze(1)

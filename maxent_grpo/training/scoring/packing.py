"""How a slice enters the model: one padded row per sequence, or one packed row per prompt.

Packed, the completions of a prompt follow one copy of it; each restarts its positions after the prompt and sees only the
prompt and itself. Both layouts give the same log-probabilities; the packed one feeds P + G * C tokens a group instead of
G * (P + C).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.types.rewards import PromptCacheEntry, ScoreBatch


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
    num_real: int = 0
    """Positions fed to the model that are tokens of a sequence rather than padding."""

    @property
    def num_fed(self) -> int:
        """Positions fed to the model, padding included."""
        return self.input_ids.numel()

    def to(self, device: torch.device) -> ModelInputs:
        """The same inputs on ``device``."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)


def pad_rows(batch: ScoreBatch, rows: RowRange) -> ModelInputs:
    """One row per sequence: the prompt padded on the left, the completion on the right."""
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


def pack_rows(batch: ScoreBatch, rows: RowRange, dtype: torch.dtype) -> ModelInputs:
    """One row per prompt: the prompt, then its completions, each behind the prompt only.

    Args:
        batch: the step's sequences.
        rows: the sequences to pack; a group may be cut, its part then brings its own copy of the prompt.
        dtype: type of the additive attention mask, the model's.
    """
    packs = _group_rows(batch.prompt_entries[rows.slice])
    prompt_lengths = torch.tensor([entry.length for entry, _, _ in packs])
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

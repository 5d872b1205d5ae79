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
    ``[model_row[m], place[m]]`` of the last ``num_kept`` positions.
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
    )


def pack_rows(batch: ScoreBatch, rows: RowRange, dtype: torch.dtype) -> ModelInputs:
    """One row per prompt: the prompt, then its completions, each behind the prompt only.

    Args:
        batch: the step's sequences.
        rows: the sequences to pack; a group may be cut, its part then brings its own copy of the prompt.
        dtype: type of the additive attention mask, the model's.
    """
    lengths = batch.completion_attention_mask[rows.slice].sum(dim=-1).tolist()
    packs = _group_rows(batch.prompt_entries[rows.slice])
    widths = [entry.length + sum(lengths[first:last]) for entry, first, last in packs]
    width = max(widths)
    ids = torch.full((len(packs), width), batch.pad_token_id, dtype=torch.long)
    positions = torch.zeros((len(packs), width), dtype=torch.long)
    segments = torch.full((len(packs), width), -1, dtype=torch.long)
    read: list[Tensor] = []
    for number, (entry, first, last) in enumerate(packs):
        ids[number, : entry.length] = torch.tensor(entry.input_ids, dtype=torch.long)
        positions[number, : entry.length] = torch.arange(entry.length)
        segments[number, : entry.length] = 0
        at = entry.length
        for segment, row in enumerate(range(first, last), start=1):
            length = lengths[row]
            ids[number, at : at + length] = batch.completion_ids[rows.first + row, :length]
            positions[number, at : at + length] = torch.arange(entry.length, entry.length + length)
            segments[number, at : at + length] = segment
            # the first token is predicted at the prompt's end, every other one at the token before it
            place = torch.arange(at - 1, at + length - 1)
            place[:1] = entry.length - 1
            column = torch.arange(length)
            read.append(torch.stack([torch.full_like(column, number), place, torch.full_like(column, row), column]))
            at += length
    model_row, place, row, column = torch.cat(read, dim=1)
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

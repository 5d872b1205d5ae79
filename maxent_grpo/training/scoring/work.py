"""What a pass over sequences needs to compute, whatever layout it is run in."""

from __future__ import annotations

from itertools import groupby

from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.types.flops import Work, scoring_work
from maxent_grpo.training.types.rewards import ScoreBatch


def rows_work(batch: ScoreBatch, rows: RowRange) -> Work:
    """Scoring some rows of a batch, the prompt of neighbouring completions once."""
    entries = batch.prompt_entries[rows.slice]
    lengths = batch.completion_attention_mask[rows.slice].sum(dim=-1).tolist()
    total = Work()
    for _, group in groupby(zip(entries, lengths, strict=True), key=lambda row: id(row[0])):
        sequences = list(group)
        total += scoring_work(sequences[0][0].length, [length for _, length in sequences])
    return total

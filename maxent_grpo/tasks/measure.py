"""What rendered rows come to, as plain values: numbers of rows, lengths of prompts, what was left out and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from maxent_grpo.tasks.prompt_writer import prompt_token_ids
from maxent_grpo.tasks.tokenize import RenderedRows


def measured(rendered: RenderedRows) -> dict[str, Any]:
    """Rows, their prompts' lengths [tokens], and how many the length limit dropped or cut.

    ``sampled`` is None where that speaks of all rows, else the number of rows that it speaks of.
    """
    return {
        "rows": len(rendered.rows),
        "prompt_tokens": length_figures(rendered.lengths),
        "too_long": rendered.num_dropped,
        "truncated": rendered.num_truncated,
        "sampled": None if rendered.sample is None else rendered.num_sampled,
    }


def length_figures(lengths: Sequence[int]) -> dict[str, int] | None:
    """Least, median, 95th percentile and most, each of them a length that occurs; None without any."""
    if not lengths:
        return None
    ordered = sorted(lengths)
    return {
        "min": ordered[0],
        "median": _at_share(ordered, 0.5),
        "p95": _at_share(ordered, 0.95),
        "max": ordered[-1],
    }


def as_the_model_sees_it(tokenizer: PreTrainedTokenizerBase, rendered: RenderedRows) -> dict[str, str] | None:
    """The first prompt, decoded from its tokens with the special ones visible; None without rows."""
    if not rendered.measured:
        return None
    row = rendered.measured[0]
    ids = prompt_token_ids(tokenizer, row["prompt"])
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return {"row_id": row["row_id"], "text": str(text)}


def _at_share(ordered: Sequence[int], share: float) -> int:
    """The smallest value that at least this share of all does not exceed."""
    return ordered[math.ceil(share * len(ordered)) - 1]

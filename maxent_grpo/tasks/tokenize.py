"""Rows to rendered prompts, prompts to token ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from maxent_grpo.errors import DataError
from maxent_grpo.tasks.base import TaskRow
from maxent_grpo.tasks.conversation import PromptStyle, conversation_of
from maxent_grpo.tasks.lazy_rows import LazyRows, sample_places
from maxent_grpo.tasks.prompt_writer import PromptWriter, prompt_token_ids
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.types.choices import LongPrompts
from maxent_grpo.training.types.rewards import PromptCacheEntry

ROW_FIELDS = ("row_id", "prompt", "prompt_messages", "answer")
"""Names in a rendered row that no column can take."""


@dataclass(frozen=True, slots=True)
class RenderedRow:
    """A row ready for the loop, or None where it was dropped."""

    row: dict[str, Any] | None
    """``{"row_id", "prompt", "prompt_messages", "answer", **columns}``."""
    num_tokens: int
    """Of the prompt as it is used; of a dropped row, as it would have been."""
    truncated: bool


@dataclass(frozen=True, slots=True)
class RenderedRows:
    """Rows ready for the loop, and how many the length limit dropped or cut."""

    rows: Sequence[Any]
    """The kept rows in the order given, see ``RenderedRow``; where they are rendered when drawn, None for one that is dropped then."""
    num_dropped: int
    num_truncated: int
    lengths: Sequence[int] = ()
    """Tokens of the kept prompts that were measured."""
    sample: Sequence[dict[str, Any]] | None = None
    """The kept rows of a fixed sample, which all of the above but ``rows`` speaks of; None where it speaks of all rows."""
    num_sampled: int = 0
    """Rows of that sample, dropped ones included."""
    places: Sequence[int] | npt.NDArray[np.int64] | None = None
    """Where the rows stand among those there were; None where none is missing."""
    num_duplicates: int = 0
    num_overlapping: int = 0
    """Rows that were found to ask the same as an earlier, or a held-out, row."""

    @property
    def measured(self) -> Sequence[dict[str, Any]]:
        """The rows that were looked at: all, or those of the sample."""
        return self.rows if self.sample is None else self.sample

    def by_id(self) -> Mapping[str, Mapping[str, Any]]:
        """The rows by row_id."""
        return self.rows.by_id() if isinstance(self.rows, LazyRows) else {row["row_id"]: row for row in self.rows}


class RowRenderer:
    """Writes a row's prompt and applies the length limit.

    A prompt of more than ``max_prompt_len`` tokens is dropped, or cut on the left (its template's opening goes first). The
    rendered text of a cut prompt is what remains of it, so that text and token ids always say the same; where no cut
    within the limit reads back as the same tokens, the row is dropped and counted so.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        style: PromptStyle,
        *,
        max_prompt_len: int,
        long_prompts: LongPrompts,
    ) -> None:
        self._tokenizer, self._style, self._writer = tokenizer, style, PromptWriter(tokenizer, style)
        self.max_prompt_len = max_prompt_len
        self._long_prompts = long_prompts

    def __call__(self, task_row: TaskRow) -> RenderedRow:
        """The row with its prompt."""
        text = self._writer.row_text(task_row)
        ids = prompt_token_ids(self._tokenizer, text)
        length, truncated = len(ids), len(ids) > self.max_prompt_len
        if truncated:
            cut = self._long_prompts is LongPrompts.truncate_left
            kept = _cut_left(self._tokenizer, ids, self.max_prompt_len) if cut else None
            if kept is None:
                return RenderedRow(None, length, False)
            text, length = kept
        prompt = RowPrompt(text, task_row.row_id)
        columns = {name: value for name, value in task_row.columns.items() if name not in ROW_FIELDS}
        told = {"row_id": task_row.row_id, "prompt": prompt, "answer": task_row.answer}
        row = {**told, "prompt_messages": conversation_of(task_row, self._style), **columns}
        return RenderedRow(row, length, truncated)


def render_rows(
    task_rows: Sequence[TaskRow],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_prompt_len: int,
    long_prompts: LongPrompts,
    style: PromptStyle | None = None,
    render_ahead: int | None = None,
) -> RenderedRows:
    """Write the prompt of each row, see ``RowRenderer``; of more than ``render_ahead`` rows, each when it is drawn.

    Raises:
        ConfigError: the tokenizer cannot write prompts in that style.
        DataError: no row is left, or a row is no conversation.
    """
    renderer = RowRenderer(tokenizer, style or PromptStyle(), max_prompt_len=max_prompt_len, long_prompts=long_prompts)
    if render_ahead is None or len(task_rows) <= render_ahead:
        return _measured(renderer, [renderer(row) for row in task_rows])
    sample = [task_rows[place] for place in sample_places(len(task_rows))]
    looked_at = _measured(renderer, [renderer(row) for row in sample], f" of a sample of {len(sample)}")
    rows = LazyRows(task_rows, renderer)
    return replace(looked_at, rows=rows, places=None, sample=looked_at.rows, num_sampled=len(sample))


def _measured(renderer: RowRenderer, rendered: Sequence[RenderedRow], which: str = "") -> RenderedRows:
    places = [place for place, entry in enumerate(rendered) if entry.row is not None]
    kept = [rendered[place] for place in places]
    if rendered and not kept:
        longest = max(entry.num_tokens for entry in rendered)
        raise DataError(
            f"all {len(rendered)} prompts{which} are longer than generation.max_prompt_len={renderer.max_prompt_len} tokens "
            f"(the longest has {longest}), which leaves nothing to sample. Raise generation.max_prompt_len to {longest}, or "
            f"set data.long_prompts=truncate_left."
        )
    return RenderedRows(
        rows=[entry.row for entry in kept],
        num_dropped=len(rendered) - len(kept),
        num_truncated=sum(entry.truncated for entry in kept),
        lengths=[entry.num_tokens for entry in kept],
        places=places if len(places) < len(rendered) else None,
    )


def _cut_left(tokenizer: PreTrainedTokenizerBase, ids: list[int], limit: int) -> tuple[str, int] | None:
    """The longest suffix of at most ``limit`` tokens (and more than half of it) that reads back as itself: text and length."""
    for length in range(limit, limit // 2, -1):
        suffix = ids[-length:]
        text = str(tokenizer.decode(suffix, clean_up_tokenization_spaces=False))
        if prompt_token_ids(tokenizer, text) == suffix:
            return text, length
    return None


class PromptCache:
    """Tokenised prompts by text: calling it gives the ``PromptCacheEntry``; the ``size`` most recently used are kept.

    ``hits`` and ``misses`` count the calls. ``size`` 0 keeps none. Entries are shared: do not change them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
        if size < 0:
            raise ValueError(f"a prompt cache cannot have {size} entries; use 0 for none")
        self._tokenizer = tokenizer
        self._size = size
        self._entries: OrderedDict[str, PromptCacheEntry] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __call__(self, prompt: str) -> PromptCacheEntry:
        """The tokens of ``prompt``, which is rendered text (see ``render_rows``)."""
        key = str(prompt)
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            self.hits += 1
            return entry
        self.misses += 1
        ids = prompt_token_ids(self._tokenizer, key)
        entry = PromptCacheEntry(input_ids=ids, attention_mask=[1] * len(ids))
        if self._size:
            self._entries[key] = entry
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return entry

    def __len__(self) -> int:
        return len(self._entries)

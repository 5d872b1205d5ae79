"""Rows to rendered prompts, prompts to token ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from maxent_grpo.errors import DataError
from maxent_grpo.tasks.base import TaskRow
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.types.choices import LongPrompts
from maxent_grpo.training.types.rewards import PromptCacheEntry


@dataclass(frozen=True, slots=True)
class RenderedRows:
    """Rows ready for the loop, and how many the length limit dropped or cut."""

    rows: list[dict[str, Any]]
    """``{"row_id", "prompt", "conversation", "answer", **columns}`` of each kept row, in the order given."""
    num_dropped: int
    num_truncated: int


def prompt_token_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Token ids of rendered text; the chat template has already written the special tokens."""
    return list(tokenizer(str(prompt), add_special_tokens=False)["input_ids"])


def render_rows(
    task_rows: Sequence[TaskRow],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_prompt_len: int,
    long_prompts: LongPrompts,
) -> RenderedRows:
    """Apply the chat template, with its generation prompt, to each row.

    A prompt of more than ``max_prompt_len`` tokens is dropped, or cut on the left (its template's opening goes first). The
    rendered text of a cut prompt is what remains of it, so that text and token ids always say the same; where no cut
    within the limit reads back as the same tokens, the row is dropped and counted so.

    Raises:
        DataError: no row is left.
    """
    rows: list[dict[str, Any]] = []
    num_dropped = num_truncated = longest = 0
    for task_row in task_rows:
        text = str(tokenizer.apply_chat_template(task_row.messages, tokenize=False, add_generation_prompt=True))
        ids = prompt_token_ids(tokenizer, text)
        longest = max(longest, len(ids))
        if len(ids) > max_prompt_len:
            kept = None if long_prompts is LongPrompts.drop else _cut_left(tokenizer, ids, max_prompt_len)
            if kept is None:
                num_dropped += 1
                continue
            num_truncated += 1
            text = kept
        prompt = RowPrompt(text, task_row.row_id)
        told = {"row_id": task_row.row_id, "prompt": prompt, "conversation": task_row.messages}
        rows.append({**told, "answer": task_row.answer, **task_row.columns})
    if task_rows and not rows:
        raise DataError(
            f"all {len(task_rows)} prompts are longer than generation.max_prompt_len={max_prompt_len} tokens (the longest has "
            f"{longest}), which leaves nothing to sample. Raise generation.max_prompt_len to {longest}, or set "
            f"data.long_prompts=truncate_left."
        )
    return RenderedRows(rows=rows, num_dropped=num_dropped, num_truncated=num_truncated)


def _cut_left(tokenizer: PreTrainedTokenizerBase, ids: list[int], limit: int) -> str | None:
    """The text of the longest suffix of at most ``limit`` tokens (and more than half of it) that reads back as itself."""
    for length in range(limit, limit // 2, -1):
        suffix = ids[-length:]
        text = str(tokenizer.decode(suffix, clean_up_tokenization_spaces=False))
        if prompt_token_ids(tokenizer, text) == suffix:
            return text
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

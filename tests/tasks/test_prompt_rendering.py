"""Rows to rendered prompts and prompts to tokens."""

from __future__ import annotations

import copy
import pickle

import pytest

from maxent_grpo.errors import DataError
from maxent_grpo.models.tokenizer import build_char_tokenizer
from maxent_grpo.tasks.base import TaskRow
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.tasks.tokenize import PromptCache, render_rows
from maxent_grpo.training.types.choices import LongPrompts


def row(row_id: str, content: str) -> TaskRow:
    return TaskRow(row_id, [{"role": "user", "content": content}], "answer", {"num_modes": 2})


ROWS = [row("short", "ab"), row("long", "0123456789"), row("same", "ab")]


def test_rows_are_rendered_with_template_and_generation_prompt() -> None:
    rendered = render_rows(ROWS, build_char_tokenizer(), max_prompt_len=13, long_prompts=LongPrompts.drop)
    assert (rendered.num_dropped, rendered.num_truncated) == (0, 0)
    assert [entry["prompt"] for entry in rendered.rows] == [
        "<bos><|user|>ab<|assistant|>",
        "<bos><|user|>0123456789<|assistant|>",
        "<bos><|user|>ab<|assistant|>",
    ]
    assert [entry["prompt"].row_id for entry in rendered.rows] == ["short", "long", "same"]
    assert rendered.rows[0] == {
        "row_id": "short",
        "prompt": "<bos><|user|>ab<|assistant|>",
        "prompt_messages": [{"role": "user", "content": "ab"}],
        "answer": "answer",
        "num_modes": 2,
    }


def test_prompts_that_are_too_long_are_dropped_and_counted() -> None:
    rendered = render_rows(ROWS, build_char_tokenizer(), max_prompt_len=12, long_prompts=LongPrompts.drop)
    assert [entry["row_id"] for entry in rendered.rows] == ["short", "same"]
    assert (rendered.num_dropped, rendered.num_truncated) == (1, 0)


def test_a_truncated_prompt_reads_and_tokenises_as_what_is_left_of_it() -> None:
    tokenizer = build_char_tokenizer()
    rendered = render_rows(ROWS, tokenizer, max_prompt_len=6, long_prompts=LongPrompts.truncate_left)
    assert (rendered.num_dropped, rendered.num_truncated) == (0, 1)
    assert rendered.rows[1]["prompt"] == "56789<|assistant|>"
    full = tokenizer("<bos><|user|>0123456789<|assistant|>", add_special_tokens=False)["input_ids"]
    assert PromptCache(tokenizer, 4)(rendered.rows[1]["prompt"]).input_ids == full[-6:]


def test_a_limit_that_leaves_no_row_is_an_error_naming_the_numbers() -> None:
    with pytest.raises(DataError, match=r"all 3 prompts .*max_prompt_len=4 tokens \(the longest has 13\)"):
        render_rows(ROWS, build_char_tokenizer(), max_prompt_len=4, long_prompts=LongPrompts.drop)


def test_no_rows_render_to_no_rows() -> None:
    assert render_rows([], build_char_tokenizer(), max_prompt_len=4, long_prompts=LongPrompts.drop).rows == []


def test_a_row_prompt_keeps_its_row_through_copies_and_pickles() -> None:
    prompt = RowPrompt("text", "row")
    for other in (copy.copy(prompt), copy.deepcopy(prompt), pickle.loads(pickle.dumps(prompt))):
        assert other == "text"
        assert other.row_id == "row"
    assert {prompt: 1}["text"] == 1


def test_the_cache_keeps_the_most_recently_used_prompts() -> None:
    cache = PromptCache(build_char_tokenizer(), 2)
    first = cache("<bos>a")
    assert (first.input_ids, first.attention_mask, first.length) == ([1, 73], [1, 1], 2)
    assert cache(RowPrompt("<bos>a", "row")) is first
    cache("b")
    cache("<bos>a")
    cache("c")  # evicts b, which was used least recently
    assert (cache.hits, cache.misses, len(cache)) == (2, 3, 2)
    assert cache("<bos>a") is first
    cache("b")
    assert (cache.hits, cache.misses, len(cache)) == (3, 4, 2)


def test_a_cache_of_size_zero_keeps_nothing() -> None:
    cache = PromptCache(build_char_tokenizer(), 0)
    assert cache("ab").input_ids == cache("ab").input_ids == [73, 74]
    assert (cache.hits, cache.misses, len(cache)) == (0, 2, 0)

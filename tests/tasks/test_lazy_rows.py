"""Rows rendered when they are drawn are those rendered ahead; few are kept, and any is found by its id."""

from __future__ import annotations

import pytest
from support.many_rows import MadeRows
from support.tiny import tiny_tokenizer

from maxent_grpo.errors import DataError
from maxent_grpo.tasks.conversation import PromptStyle
from maxent_grpo.tasks.lazy_rows import SAMPLED_ROWS, LazyRows, sample_places
from maxent_grpo.tasks.tokenize import RenderedRows, RowRenderer, render_rows
from maxent_grpo.training.types.choices import LongPrompts

LIMIT = 10
"""Tokens that the longer questions of ``MadeRows`` exceed."""


def renderer(limit: int = LIMIT, long_prompts: LongPrompts = LongPrompts.drop) -> RowRenderer:
    return RowRenderer(tiny_tokenizer(), PromptStyle(), max_prompt_len=limit, long_prompts=long_prompts)


def rendered(num: int, render_ahead: int, limit: int = LIMIT, **changes: LongPrompts) -> RenderedRows:
    settings = {"long_prompts": LongPrompts.drop} | changes
    return render_rows(MadeRows(num), tiny_tokenizer(), max_prompt_len=limit, render_ahead=render_ahead, **settings)


def test_as_many_rows_as_are_rendered_ahead_are_all_measured() -> None:
    ahead, when_drawn = rendered(30, 30), rendered(30, 29)
    assert (len(ahead.rows), ahead.num_dropped, ahead.sample) == (20, 10, None)
    assert ahead.places == [n for n in range(30) if n % 3]
    assert (len(when_drawn.rows), when_drawn.num_sampled) == (30, 30)
    assert [row for row in when_drawn.rows if row is not None] == ahead.rows
    assert [row is None for row in when_drawn.rows] == [n % 3 == 0 for n in range(30)]
    assert (when_drawn.num_dropped, when_drawn.lengths, when_drawn.measured) == (10, ahead.lengths, ahead.rows)


def test_long_prompts_are_cut_when_they_are_drawn_too() -> None:
    ahead, when_drawn = (rendered(9, n, long_prompts=LongPrompts.truncate_left) for n in (9, 0))
    assert list(when_drawn.rows) == ahead.rows
    assert when_drawn.num_truncated == ahead.num_truncated == 3
    assert max(ahead.lengths) == LIMIT


def test_a_long_data_set_is_measured_on_a_fixed_sample() -> None:
    found = rendered(5000, 20)
    assert isinstance(found.rows, LazyRows)
    assert sample_places(5000) == list(range(0, 5000, 5)) == sample_places(5000)
    assert found.num_sampled == SAMPLED_ROWS == 1000
    assert (len(found.rows), found.num_dropped) == (5000, sum(n % 3 == 0 for n in range(0, 5000, 5)))
    assert [row["number"] for row in found.measured[:3]] == [5, 10, 20]


def test_a_sample_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"all 1000 prompts of a sample of 1000 are longer than generation.max_prompt_len=3"
    ):
        rendered(2000, 20, limit=3)


def test_only_the_rows_used_last_are_kept() -> None:
    rows = MadeRows(100)
    lazy = LazyRows(rows, renderer(), keep=2)
    first = lazy[1]
    assert lazy[1] is first
    assert rows.made[1] == 1
    assert lazy[0] is None
    assert lazy[0] is None
    assert (lazy[1], rows.made[0]) == (first, 1)  # what is dropped is remembered too
    assert lazy[2] is not None
    assert lazy[0] is None
    assert rows.made[0] == 2


def test_a_row_is_found_by_its_id_without_a_table_of_ids() -> None:
    rows = MadeRows(1000)
    by_id = LazyRows(rows, renderer()).by_id()
    row = by_id["row-500"]
    assert (row["row_id"], row["number"], sum(rows.made.values())) == ("row-500", 500, 1)
    for gone in ("row-0", "row-1000", "other-1"):
        with pytest.raises(KeyError):
            by_id[gone]


def test_rows_in_a_list_are_found_by_a_table_made_once() -> None:
    rows = list(MadeRows(10))
    by_id = LazyRows(rows, renderer()).by_id()
    assert by_id["row-7"]["number"] == 7
    assert [by_id[name]["number"] for name in by_id] == [1, 2, 4, 5, 7, 8]
    assert len(by_id) == 6


def test_no_column_takes_the_name_of_what_a_row_is_made_of() -> None:
    row = MadeRows(2)[1]
    row.columns.update(prompt="p", answer="a", row_id="r")
    made = renderer()(row).row
    assert made is not None
    assert (made["row_id"], made["prompt"], made["number"]) == ("row-1", "<bos><|user|>1<|assistant|>", 1)
    assert made["answer"] == row.answer

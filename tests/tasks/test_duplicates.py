"""Which training rows ask what another row asks, and that finding out costs little."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from support.many_rows import MadeRows, made_row

from maxent_grpo.errors import DataError
from maxent_grpo.tasks.base import IndexedRows, TaskRow
from maxent_grpo.tasks.conversation import PromptStyle
from maxent_grpo.tasks.duplicates import distinct_rows, normalised, prompt_hash
from maxent_grpo.training.types.choices import Duplicates, Overlap

STYLE = PromptStyle()


def rows(*questions: str) -> list[TaskRow]:
    return [made_row(n, lambda _, text=text: text) for n, text in enumerate(questions)]


def ids(found: object) -> list[str]:
    return [row.row_id for row in found]  # pyright: ignore[reportGeneralTypeIssues]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("What  is\n 2+2? ", "what is 2+2?"),
        ("STRASSE", "straße"),
        ("ﬁve ½ ２", "five 1⁄2 2"),
        ("Ｘ＝\u00a01", "x= 1"),
        ("Σίσυφος", "σίσυφοσ"),
    ],
)
def test_case_white_space_and_forms_of_characters_do_not_tell_prompts_apart(left: str, right: str) -> None:
    assert normalised(left) == normalised(right)


@pytest.mark.parametrize(("left", "right"), [("2+2", "2 + 2"), ("2+2", "2-2"), ("é", "e"), ("a b", "ab")])
def test_everything_else_does(left: str, right: str) -> None:
    assert normalised(left) != normalised(right)


def test_turns_and_roles_tell_conversations_apart() -> None:
    def turns(*parts: tuple[str, str]) -> list[dict[str, str]]:
        return [{"role": role, "content": text} for role, text in parts]

    asked = [
        turns(("user", "a b")),
        turns(("user", "a"), ("user", "b")),
        turns(("system", "a"), ("user", "b")),
        turns(("user", "a"), ("assistant", ""), ("user", "b")),
    ]
    assert len({prompt_hash(conversation) for conversation in asked}) == 4


def test_the_first_of_equal_prompts_stays_and_held_out_ones_go() -> None:
    train = rows("a", "b", "A ", "held", "c", "b", "HELD")
    for dedup, overlap, kept in (
        (Duplicates.drop, Overlap.drop, [0, 1, 4]),
        (Duplicates.keep, Overlap.drop, [0, 1, 2, 4, 5]),
        (Duplicates.drop, Overlap.allow, [0, 1, 3, 4]),
    ):
        found = distinct_rows(train, rows("held"), STYLE, dedup=dedup, overlap=overlap)
        assert ids(found.rows) == [f"row-{n}" for n in kept]
        assert found.places is not None
        assert found.places.tolist() == kept
        # what is left out as held out is not counted as a repetition too
        assert (found.num_duplicates, found.num_overlapping) == (2 + (overlap is Overlap.allow), 2)
    kept_all = distinct_rows(train, rows("held"), STYLE, dedup=Duplicates.keep, overlap=Overlap.allow)
    assert kept_all.rows is train
    assert (kept_all.places, kept_all.num_duplicates, kept_all.num_overlapping) == (None, 3, 2)


def test_an_overlap_can_stop_the_run_and_names_rows() -> None:
    with pytest.raises(DataError, match=r"data.overlap=stop: 4 of 5 training rows .*\(row-0, row-1, row-2, ...\)"):
        distinct_rows(rows("a", "b", "c", "d", "e"), rows("D", "C", "B", "A"), STYLE,
                      dedup=Duplicates.drop, overlap=Overlap.stop)  # fmt: skip
    apart = distinct_rows(rows("a"), rows("b"), STYLE, dedup=Duplicates.drop, overlap=Overlap.stop)
    assert apart.num_overlapping == 0
    with pytest.raises(DataError, match="all 2 training rows ask what a held-out row asks"):
        distinct_rows(rows("a", "a"), rows("a"), STYLE, dedup=Duplicates.drop, overlap=Overlap.drop)


def test_prompts_are_compared_as_the_template_makes_them() -> None:
    train = [TaskRow(f"r{n}", [{"role": "user", "content": "Which?"}], "", {"text": n}) for n in range(3)]
    alone = distinct_rows(train, [], STYLE, dedup=Duplicates.drop, overlap=Overlap.drop)
    assert ids(alone.rows) == ["r0"]
    style = PromptStyle(template="{text}: {prompt}", system_prompt="Be brief.")
    told_apart = distinct_rows(train, [], style, dedup=Duplicates.drop, overlap=Overlap.drop)
    assert told_apart.num_duplicates == 0


def test_rows_that_are_left_are_found_by_their_ids() -> None:
    train = MadeRows(40, lambda n: str(n // 2))
    found = distinct_rows(train, [], STYLE, dedup=Duplicates.drop, overlap=Overlap.drop)
    assert isinstance(found.rows, IndexedRows)
    assert [found.rows.place_of(f"row-{n}") for n in (0, 2, 38)] == [0, 1, 19]
    for gone in ("row-1", "row-39", "other-2", "row-40"):
        with pytest.raises(KeyError):
            found.rows.place_of(gone)


def test_a_long_data_set_is_looked_through_in_a_bounded_memory() -> None:
    """What is kept of a row are a few numbers, in all less than 64 bytes; a row alone takes about a thousand."""
    num = 30_000
    train = MadeRows(num, lambda n: f"question number {n % (num // 2)}", counted=False)
    started = time.process_time()
    tracemalloc.start()
    found = distinct_rows(train, [], STYLE, dedup=Duplicates.drop, overlap=Overlap.drop)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.num_duplicates == num // 2
    assert len(found.rows) == num // 2
    assert peak < num * 64
    assert time.process_time() - started < 10

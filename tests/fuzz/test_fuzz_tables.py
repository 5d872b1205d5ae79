"""Random tables: each record becomes a problem that can be graded, or the whole is refused by a sentence that names the file."""

from __future__ import annotations

import csv
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from support.fuzzing import JSON_VALUES, cases, try_cases

from maxent_grpo.config.data_sources import TableDataConfig
from maxent_grpo.errors import DataError
from maxent_grpo.tasks.build import build_task
from maxent_grpo.training.types.choices import GraderName, OnBadRow

TEXT = st.one_of(
    st.text(max_size=20), st.sampled_from(["7", "-3.5", "A", "\\boxed{2}", "#### 4", '"', "a,b", "\n", "\x00"])
)
TURNS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": TEXT}),
    max_size=3,
)
RECORDS = st.one_of(
    st.fixed_dictionaries({"prompt": TEXT, "answer": TEXT}),
    st.fixed_dictionaries({"prompt": TURNS, "answer": st.integers()}),
    st.fixed_dictionaries(
        {"prompt": st.one_of(TEXT, JSON_VALUES), "answer": st.one_of(TEXT, JSON_VALUES), "more": JSON_VALUES}
    ),
    JSON_VALUES,
)
GOOD = '{"prompt": "2 + 5?", "answer": "7"}'
LINES = st.one_of(
    st.just(GOOD.encode()),
    RECORDS.map(lambda record: json.dumps(record).encode()),
    st.tuples(RECORDS, st.integers(0, 30)).map(lambda pair: json.dumps(pair[0]).encode()[: pair[1]]),
    st.binary(max_size=20),
    st.sampled_from(
        [b"", b"NaN", b"[" * 3000, b'{"prompt": 1e999, "answer": 2}', b'\xef\xbb\xbf{"prompt": "a", "answer": "1"}']
    ),
)


def csv_of(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


FIELDS = st.lists(TEXT, min_size=2, max_size=2)
TABLES = st.one_of(
    st.tuples(st.just("a.jsonl"), st.lists(LINES, max_size=6).map(b"\n".join)),
    st.tuples(st.just("a.csv"), st.lists(FIELDS, max_size=5).map(lambda rows: csv_of([["prompt", "answer"], *rows]))),
    st.tuples(st.just("a.csv"), st.lists(st.lists(TEXT, max_size=3), max_size=5).map(csv_of)),
    st.tuples(st.sampled_from(["a.csv", "a.tsv", "a.jsonl", "a.parquet"]), st.binary(max_size=120)),
)
SETTINGS = st.fixed_dictionaries(
    {
        "grader": st.sampled_from([GraderName.exact, GraderName.numeric, GraderName.choice]),
        "on_bad_row": st.sampled_from(list(OnBadRow)),
        "check_answers": st.sampled_from([0, 2, 100]),
        "answer_after": st.sampled_from([None, "####"]),
        "answer_boxed": st.booleans(),
        "eval_fraction": st.sampled_from([0.0, 0.5]),
        "num_train": st.sampled_from([None, 1]),
        "prompt_column": st.sampled_from(["prompt", "prompt", "prompt", "more.a"]),
    }
)


def reads_or_names_the_file(folder: Path, case: tuple[tuple[str, bytes], dict[str, Any]]) -> None:
    (name, content), chosen = case
    path = folder / name
    path.write_bytes(content)
    try:
        task = build_task(TableDataConfig(path=str(path), cache_dir=str(folder / "cache"), **chosen))
        rows = [*task.train_rows, *task.eval_rows]
    except DataError as error:
        assert name in str(error)
        return
    finally:
        path.unlink()
    assert len(rows) == len({row.row_id for row in rows})
    for row in rows:
        assert row.messages[-1]["role"] == "user"
        assert row.messages[-1]["content"].strip()
        assert row.answer
        try:
            assert task.grade("no answer of mine", row.answer).reward in (0.0, 1.0)
        except DataError as error:
            # with data.check_answers below the number of records an answer may show only here that it cannot be read
            assert chosen["check_answers"] < 100
            assert repr(row.answer) in str(error)


@cases(short=60, long=600)
def test_a_random_table_is_read_or_its_file_is_named(
    num_cases: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    drawn = st.tuples(TABLES, SETTINGS)
    try_cases(num_cases, drawn, lambda case: reads_or_names_the_file(tmp_path, case), seconds=20)

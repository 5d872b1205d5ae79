"""Records and files that cannot be read as a table: each is named, with where it stands and why."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.text_tables import SUMS, complaint, rows_of, table, write_jsonl

from maxent_grpo.errors import DataError
from maxent_grpo.training.types.choices import OnBadRow

BROKEN = {
    '{"prompt": "a", "answer": "1"': "is not JSON (Expecting ',' delimiter, character 31)",
    '["a", "1"]': "is a list, not an object with named columns",
    '{"prompt": "a", "answer": 1' + "0" * 5000 + "}": "is not JSON that can be read (Exceeds the limit",
    '{"prompt": "a"}': "there is no column answer",
    '{"prompt": " ", "answer": "1"}': "the question in column prompt is empty",
    '{"prompt": null, "answer": "1"}': "column prompt holds null, neither text nor a conversation",
    '{"prompt": 3, "answer": "1"}': "column prompt holds the number 3, neither text nor a conversation",
    '{"prompt": "a", "answer": ["1"]}': "the answer in column answer is a list, neither text nor a number",
    '{"prompt": "a", "answer": true}': "the answer in column answer is true, neither text nor a number",
    '{"prompt": "a", "answer": NaN}': "the answer in column answer is the number nan, neither text nor a number",
    '{"prompt": "a", "answer": ""}': "the answer in column answer is empty",
    '{"prompt": "a\\ud83d", "answer": "1"}': "column prompt holds half a character (position 2)",
    '{"prompt": [], "answer": "1"}': "column prompt holds a list, neither text nor a conversation",
    '{"prompt": ["a"], "answer": "1"}': "turn 1 of column prompt is no message {role, content}",
    '{"prompt": [{"role": "tool", "content": "a"}], "answer": "1"}': "turn 1 of column prompt has the role 'tool'; roles are",
    '{"prompt": [{"role": "user", "content": ["a"]}], "answer": "1"}': "turn 1 of column prompt has a list as content, not text",
    '{"prompt": [{"role": "user", "content": "a", "name": "b"}], "answer": "1"}': "turn 1 of column prompt has name beside",
    '{"prompt": [{"role": "assistant", "content": "a"}], "answer": "1"}': "in column prompt ends with a turn of assistant",
}


def test_each_broken_row_is_named_with_file_line_and_reason(tmp_path: Path) -> None:
    lines = ['{"prompt": "first", "answer": "1"}', *BROKEN]
    path = tmp_path / "a.jsonl"
    found = {}
    for start in range(0, len(BROKEN), 9):
        part = [lines[0], "", *lines[1 + start : 10 + start]]
        path.write_text("\n".join(part), encoding="utf-8")
        head, *named, advice = complaint(path).splitlines()
        assert head == f"{path}: {len(part) - 2} records cannot be used:"
        assert advice == "Correct them, or leave them out with data.on_bad_row=skip (1 are left)."
        for number, text in enumerate(part[2:], 3):
            found[text] = next(line for line in named if line.startswith(f"  {path}, line {number}: "))
    assert len(found) == len(BROKEN)
    for text, why in BROKEN.items():
        assert why in found[text]


def test_text_that_is_not_utf8_is_named_by_its_byte(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "a", "answer": "1"}\n{"prompt": "gr\xf6\xdfe", "answer": "1"}\n')
    assert "a.jsonl, line 2: is not UTF-8 (byte 15 of the line)" in complaint(tmp_path / "a.jsonl")
    (tmp_path / "a.csv").write_bytes(b'prompt,answer\na,1\n"gr\n\xf6",2\nb,3\n')
    assert "a.csv, line 3: is not UTF-8 (byte 1 of line 4)" in complaint(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_bytes("prompt,answer\na,1\n".encode("utf-16"))
    assert complaint(tmp_path / "b.csv") == f"{tmp_path}/b.csv is UTF-16; save it as UTF-8"


def test_ragged_and_unclosed_csv_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('prompt,answer\na,1\nb\nc,3,4\n"d" e,5\nf,6\n"g,7\nh,8\n', encoding="utf-8")
    said = complaint(path)
    assert f"{path}, line 3: has 1 fields, the header has 2" in said
    assert f"{path}, line 4: has 3 fields, the header has 2" in said
    assert f"{path}, line 5: is no record of a csv file (',' expected after '\"')" in said
    assert f"{path}, line 7: is no record of a csv file (unexpected end of data); a quote may not be closed" in said
    kept = table(path, on_bad_row=OnBadRow.skip)
    assert [(row.messages[0]["content"], row.answer) for row in kept.train_rows] == [("a", "1"), ("f", "6")]


@pytest.mark.parametrize(
    ("header", "why"),
    [("prompt,answer,answer", "names 'answer' twice"), ("prompt,,answer", "has a column without a name")],
)
def test_a_header_that_does_not_name_columns_is_refused(tmp_path: Path, header: str, why: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\na,1,2\n", encoding="utf-8")
    assert complaint(tmp_path / "a.csv") == (
        f"{tmp_path}/a.csv, line 1: the header {why}; each column needs a name of its own"
    )


def test_at_most_ten_broken_rows_are_named_and_the_rest_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [*SUMS, *({"prompt": "", "answer": 1} for _ in range(33))])
    lines = complaint(path).splitlines()
    assert (lines[0], len(lines), lines[11]) == (f"{path}: 33 records cannot be used:", 13, "  and 23 more")
    with caplog.at_level(logging.WARNING):
        task = table(path, on_bad_row=OnBadRow.skip)
    assert (len(task.train_rows), task.num_skipped) == (10, 33)
    said = caplog.records[0].getMessage()
    assert said.startswith(f"{path}: 33 records left out (data.on_bad_row=skip):\n  {path}, line 11: the question")
    assert said.endswith("and 23 more")


def test_broken_parquet_rows_are_named_and_skipped(tmp_path: Path) -> None:
    records = [{"prompt": f"{n}?" if n % 5 else None, "answer": n} for n in range(12)]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    said = complaint(tmp_path / "a.parquet")
    assert [line.split(": ")[0] for line in said.splitlines()[1:-1]] == [
        f"  {tmp_path}/a.parquet, row {row}" for row in (1, 6, 11)
    ]
    rows = rows_of(table(tmp_path / "a.parquet", on_bad_row=OnBadRow.skip))
    assert [row.answer for row in rows] == ["1", "2", "3", "4", "6", "7", "8", "9", "11"]
    assert [rows.place_of(row.row_id) for row in rows] == list(range(9))
    assert rows.where(4) == f"{tmp_path}/a.parquet, row 7"


def test_category_columns_of_parquet_are_text(tmp_path: Path) -> None:
    parts = [
        pa.table({"prompt": ["a", "b"], "answer": pa.array(kinds).dictionary_encode()})
        for kinds in (["1", "2"], ["3", "1"])
    ]
    with pq.ParquetWriter(tmp_path / "a.parquet", parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part)
    assert [row.answer for row in table(tmp_path / "a.parquet").train_rows] == ["1", "2", "3", "1"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(SUMS), tmp_path / "a.parquet")
    (tmp_path / "taken").write_text("")
    with pytest.raises(DataError) as caught:
        table(tmp_path / "a.parquet", tmp_path / "taken")
    assert str(caught.value) == f"data.cache_dir={tmp_path}/taken: cannot be written (File exists); name another folder"


def test_a_column_that_is_not_there_is_named_once_with_what_is(tmp_path: Path) -> None:
    records = [{"question": "a", "reward_model": {"ground_truth": "1"}}] * 50
    path = write_jsonl(tmp_path / "a.jsonl", records)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    for file in (path, tmp_path / "a.parquet"):
        said = complaint(file, prompt_column="quesion", answer_column="ground_truth")
        assert said == (
            f"{file}: data.answer_column=ground_truth: no such column; there are question, reward_model; did you mean "
            "reward_model.ground_truth?; data.prompt_column=quesion: no such column; there are question, reward_model; did "
            "you mean question?"
        )
        said = complaint(file, prompt_column="question", answer_column="reward_model.truth")
        assert "there is no column reward_model.truth" in said


def test_files_that_hold_no_table_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n \n")
    (tmp_path / "empty.csv").write_text("prompt,answer\n")
    (tmp_path / "nothing.csv").write_text("")
    pq.write_table(pa.table({"prompt": pa.array([], pa.string()), "answer": []}), tmp_path / "empty.parquet")
    for path in sorted(tmp_path.glob("*.*")):
        assert complaint(path) == f"{path} holds no records: there is nothing to learn from; name other data"
    (tmp_path / "text.parquet").write_text("prompt,answer\na,1\n")
    assert complaint(tmp_path / "text.parquet").startswith(f"{tmp_path}/text.parquet cannot be read as parquet (")
    assert not list((tmp_path / "cache").glob(".*"))
    assert complaint(tmp_path / "tables.json") == f"{tmp_path}/tables.json: no such file or folder"

"""Problems in jsonl, csv, tsv and parquet files: what is read, where it stands, and what is refused."""

from __future__ import annotations

import csv
import json
import pickle
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.text_tables import SUMS, complaint, questions, rows_of, table, write_jsonl

from maxent_grpo.config.data_sources import TableDataConfig, TableSource
from maxent_grpo.errors import DataError
from maxent_grpo.rewards.graders import GRADERS
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.source_rows import JoinedRows, SourceRows
from maxent_grpo.tasks.text_task import TextTask
from maxent_grpo.training.types.choices import GraderName, OnBadRow

ROOT = Path(__file__).parents[2]


def test_a_record_becomes_a_problem_with_the_columns_that_it_has_besides(tmp_path: Path) -> None:
    row = table(write_jsonl(tmp_path / "sums.jsonl", SUMS)).train_rows[7]
    assert row.messages == [{"role": "user", "content": "7 + 1?"}]
    assert row.answer == "8"
    assert row.columns == {"level": {"depth": 1}}
    assert row.row_id.startswith("table-8-")


def test_every_way_to_write_the_same_table_gives_the_same_problems(tmp_path: Path) -> None:
    records = [
        {"prompt": 'Sagt "Größe",\nzwei Zeilen?', "answer": "é, ü", "note": "a"},
        {"prompt": "日本 — 😀", "answer": "2", "note": ""},
        {"prompt": " x;\ty, ", "answer": "−3", "note": "c"},
    ]
    plain = write_jsonl(tmp_path / "plain.jsonl", records)
    text = plain.read_text(encoding="utf-8")
    (tmp_path / "marked.jsonl").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n \r\n\n").encode())
    (tmp_path / "unfinished.ndjson").write_text(text.rstrip("\n"), encoding="utf-8")
    quoted = [
        ",".join('"' + value.replace('"', '""') + '"' for value in record.values())
        for record in [dict(zip(records[0], records[0], strict=True)), *records]
    ]
    (tmp_path / "plain.csv").write_text("\n".join(quoted) + "\n", encoding="utf-8")
    (tmp_path / "marked.csv").write_bytes(b"\xef\xbb\xbf" + ("\r\n".join(quoted[:2]) + "\r\n\r\n").encode())
    with (tmp_path / "marked.csv").open("ab") as file:
        file.write("\r\n".join(quoted[2:]).encode())
    (tmp_path / "plain.tsv").write_text("\n".join(quoted).replace('","', '"\t"'), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "plain.parquet", row_group_size=2)
    expected = [(row.messages, row.answer, row.columns) for row in table(plain).train_rows]
    assert expected[0] == (
        [{"role": "user", "content": 'Sagt "Größe",\nzwei Zeilen?'}],
        "é, ü",
        {"note": "a"},
    )
    others = sorted(path for path in tmp_path.iterdir() if path.is_file() and path != plain)
    assert len(others) == 6
    for path in others:
        rows = table(path).train_rows
        assert [(row.messages, row.answer, row.columns) for row in rows] == expected, path.name
        # what tells two records apart is the same however they are stored
        assert [row.row_id.split("-")[-1] for row in rows] == [
            row.row_id.split("-")[-1] for row in table(plain).train_rows
        ]


def test_places_count_lines_and_are_found_again(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,answer\n"one\nquestion",1\n\ntwo,2\n"three\n\n",3\n', encoding="utf-8")
    rows = rows_of(table(tmp_path / "a.csv"))
    assert [rows.where(n) for n in range(3)] == [f"{tmp_path}/a.csv, line {line}" for line in (2, 5, 6)]
    assert [rows.place_of(row.row_id) for row in rows] == [0, 1, 2]
    for unknown in (
        "table-3-000000000000",
        rows[0].row_id[:-1] + "x",
        "hub" + rows[0].row_id[5:],
        "",
        "x-y",
        "table--",
    ):
        with pytest.raises(KeyError):
            rows.place_of(unknown)


def test_equal_records_are_two_rows_and_a_changed_one_is_another(tmp_path: Path) -> None:
    first = [row.row_id for row in table(write_jsonl(tmp_path / "a.jsonl", [SUMS[0], SUMS[0], SUMS[1]])).train_rows]
    again = [row.row_id for row in table(write_jsonl(tmp_path / "a.jsonl", [SUMS[0], SUMS[2], SUMS[1]])).train_rows]
    assert len(set(first)) == 3
    assert first[0].split("-")[-1] == first[1].split("-")[-1]
    assert (first[0], first[2]) == (again[0], again[2])
    assert first[1] != again[1]


def test_several_files_are_one_table(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "part-1.jsonl", SUMS[:4])
    (tmp_path / "part-2.csv").write_text("prompt,answer,extra\n4 + 1?,5,x\n", encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(SUMS[5:]), tmp_path / "part-3.parquet")
    (tmp_path / "README.md").write_text("what this is")
    cache = tmp_path.parent / f"{tmp_path.name}-cache"
    for path in (tmp_path, tmp_path / "part-*.*"):
        rows = rows_of(table(path, cache))
        assert questions(rows) == [record["prompt"] for record in SUMS]
        assert [rows.place_of(row.row_id) for row in rows] == list(range(10))
        assert rows[4].row_id.startswith("table-2.2-")
        assert rows.where(9) == f"{tmp_path}/part-3.parquet, row 5"
        assert rows[0].columns == {"level": {"depth": 0}, "extra": None}
        assert rows[4].columns == {"level": None, "extra": "x"}


def test_columns_are_found_by_dots_and_answers_behind_their_mark(tmp_path: Path) -> None:
    records = [
        {
            "q": "a",
            "reward_model": {"ground_truth": "34", "style": "rule"},
            "gold": "2*3=6\n#### 5\nSo #### 6 ",
            "x.y": 1,
        },
        {"q": "b", "reward_model": {"ground_truth": "-1"}, "gold": "#### 1,000", "x.y": 2},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    nested = table(path, prompt_column="q", answer_column="reward_model.ground_truth").train_rows
    assert [row.answer for row in nested] == ["34", "-1"]
    marked = table(
        path, prompt_column="q", answer_column="gold", answer_after="####", columns=["reward_model.style", "x.y"]
    )
    assert [row.answer for row in marked.train_rows[:1]] == ["6"]
    assert marked.train_rows[0].columns == {"reward_model.style": "rule", "x.y": 1}
    assert marked.train_rows[1].columns == {"reward_model.style": None, "x.y": 2}


FIELD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12).filter(
    str.strip
)


@settings(max_examples=60, deadline=None)
@given(records=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=6), delimiter=st.sampled_from([",", "\t"]))
def test_whatever_a_csv_or_jsonl_file_says_is_read_at_any_place(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, str]], delimiter: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = folder / ("a.csv" if delimiter == "," else "a.tsv")
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([("prompt", "answer"), *records])
    as_objects = [{"prompt": prompt, "answer": answer} for prompt, answer in records]
    for written in (path, write_jsonl(folder / "a.jsonl", as_objects)):
        rows = rows_of(table(written))
        for place in reversed(range(len(records))):
            prompt, answer = records[place]
            assert (rows[place].messages[0]["content"], rows[place].answer) == (prompt, answer.strip())
            assert rows.place_of(rows[place].row_id) == place


def test_the_last_box_is_the_answer(tmp_path: Path) -> None:
    solutions = [r"First \boxed{1}, then \boxed{\frac{1}{2}}.", r"\boxed{\{1, 2\}}", r"so \boxed{x^{2}", "none"]
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "?", "answer": text} for text in solutions])
    said = complaint(path, answer_boxed=True)
    assert f"{path}, line 3: the answer in column answer has a \\boxed{{ that is never closed" in said
    assert f"{path}, line 4: the answer in column answer has no \\boxed{{...}}" in said
    kept = table(path, answer_boxed=True, on_bad_row=OnBadRow.skip)
    assert [row.answer for row in kept.train_rows] == [r"\frac{1}{2}", r"\{1, 2\}"]
    assert kept.num_skipped == 2


def test_a_prompt_may_be_a_conversation(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    records = [
        {"prompt": [*turns, {"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}], "answer": "1"},
        {"prompt": turns, "answer": "2"},
    ]
    write_jsonl(tmp_path / "a.jsonl", records)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    for path in (tmp_path / "a.jsonl", tmp_path / "a.parquet"):
        assert [row.messages for row in table(path).train_rows] == [record["prompt"] for record in records]


def test_a_file_that_changes_under_the_run_is_noticed(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", SUMS)
    rows = table(path).train_rows
    assert rows[3].answer == "3"
    write_jsonl(path, SUMS[1:])
    with pytest.raises(DataError, match=r"a\.jsonl has changed since it was read at the start"):
        _ = rows[3]


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    for number, records in enumerate([SUMS, SUMS, SUMS[:9], [*SUMS[:9], {**SUMS[9], "answer": 11}]]):
        write_jsonl(tmp_path / f"{number}.jsonl", records)
        pq.write_table(pa.Table.from_pylist(records), tmp_path / f"{number}.parquet")
    for ending in ("jsonl", "parquet"):
        same, again, fewer, other = (table(tmp_path / f"{number}.{ending}").fingerprint for number in range(4))
        assert same == again != ""
        assert len({same, fewer, other}) == 3
    assert (
        table(tmp_path / "0.jsonl", eval_path=str(tmp_path / "2.jsonl")).fingerprint
        == table(tmp_path / "0.jsonl").fingerprint
    )


def test_rows_can_be_sent_to_another_process(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", SUMS)
    pq.write_table(pa.Table.from_pylist(SUMS), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        rows = rows_of(table(tmp_path / name))
        assert rows[2] == SourceRows.__getitem__(pickle.loads(pickle.dumps(rows)), 2)


def test_held_out_rows_are_split_off_whatever_is_trained_on(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": f"{n}?", "answer": n} for n in range(100)])
    whole = table(path, eval_fraction=0.2)
    assert (len(whole.train_rows), len(whole.eval_rows)) == (80, 20)
    ids = [{row.row_id for row in rows} for rows in (whole.train_rows, whole.eval_rows)]
    assert not ids[0] & ids[1]
    few = table(path, eval_fraction=0.2, num_train=7)
    assert list(few.eval_rows) == list(whole.eval_rows)
    assert {row.row_id for row in few.train_rows} < ids[0]
    assert len(few.train_rows) == 7
    fewer = table(path, eval_fraction=0.2, num_train=5)
    assert {row.row_id for row in fewer.train_rows} < {row.row_id for row in few.train_rows}
    capped = table(path, eval_fraction=0.2, num_eval=3)
    assert (len(capped.train_rows), len(capped.eval_rows)) == (97, 3)
    assert {row.row_id for row in table(path, eval_fraction=0.2, split_seed=1).eval_rows} != ids[1]
    # a choice among all rows, not the file's beginning, in the file's order
    positions = [int(row.answer) for row in few.train_rows]
    assert positions == sorted(positions) != list(range(7))


def test_a_file_of_held_out_rows_is_taken_as_it_is(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", SUMS)
    write_jsonl(tmp_path / "test.jsonl", [*SUMS[:2], *SUMS[4:7]])
    task = table(tmp_path / "train.jsonl", eval_path=str(tmp_path / "test.jsonl"), eval_fraction=0.5)
    assert (len(task.train_rows), len(task.eval_rows)) == (10, 5)
    assert not {row.row_id for row in task.train_rows} & {row.row_id for row in task.eval_rows}
    assert isinstance(task.eval_rows, SourceRows)
    assert [task.eval_rows.place_of(row.row_id) for row in task.eval_rows] == list(range(5))
    assert len(table(tmp_path / "train.jsonl", eval_path=str(tmp_path / "test.jsonl"), num_eval=2).eval_rows) == 2


def test_the_chosen_grader_grades(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "answer": "x"}])
    for name in GraderName:
        assert table(path, grader=name).grader is GRADERS[name]
    task = table(path, grader=GraderName.exact)
    assert [task.grade(text, "x").reward for text in ("x", "y")] == [1.0, 0.0]
    with pytest.raises(DataError, match=r"data=table holds no demonstrations .* model\.warm_start\.enabled=false"):
        task.demonstrations(1, 1.0, 0)


def test_an_answer_that_the_grader_cannot_read_is_a_broken_record(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "answer": text} for text in ("B", "7", "C", "zz")])
    said = complaint(path, grader=GraderName.choice, check_answers=9).splitlines()
    assert [line.split(", so that")[0] for line in said[:3]] == [
        f"{path}: 2 records cannot be used:",
        f"  {path}, line 2: answer '7' is not one letter from A to J",
        f"  {path}, line 4: answer 'zz' is not one letter from A to J",
    ]
    kept = table(path, grader=GraderName.choice, on_bad_row=OnBadRow.skip, check_answers=9)
    assert [row.answer for row in kept.train_rows] == ["B", "C"]
    first = table(path, grader=GraderName.choice, on_bad_row=OnBadRow.skip, check_answers=2)
    assert [row.answer for row in first.train_rows] == ["B", "C", "zz"]
    assert f"{path}, line 1: answer 'B' is not one number" in complaint(
        path, grader=GraderName.numeric, check_answers=1
    )
    assert "answer '\\\\frac{' cannot be read" in complaint(
        write_jsonl(path, [{"prompt": "a", "answer": "\\frac{"}]), check_answers=1
    )


def test_a_mixture_of_tables_has_its_proportions_and_each_its_columns(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": f"a{n}", "answer": n} for n in range(40)])
    write_jsonl(tmp_path / "b.jsonl", [{"q": f"b{n}", "gold": f"so #### {n}", "mixture": 1} for n in range(10)])
    config = TableDataConfig(
        mixture={str(tmp_path / "a.jsonl"): 1.0, "b": 3.0},
        sources={"b": TableSource(str(tmp_path / "b.jsonl"), "q", "gold", answer_after="####")},
        eval_fraction=0.1,
    )
    task = build_task(config)
    assert isinstance(task, TextTask)
    assert task.mixture is not None
    assert task.mixture.sizes == (36, 9)
    assert (task.mixture.weights, task.mixture.num_rows) == ((1.0, 3.0), 45)
    assert isinstance(task.train_rows, JoinedRows)
    rows = list(task.train_rows)
    assert len({row.row_id for row in rows}) == 45
    assert [task.train_rows.place_of(row.row_id) for row in rows] == list(range(45))
    assert {row.columns["mixture_part"] for row in rows} == {str(tmp_path / "a.jsonl"), "b"}
    assert rows[36].answer == rows[36].messages[0]["content"][1:]
    drawn = [rows[place].columns["mixture_part"] for place in task.mixture.order(0, 0)]
    assert drawn.count("b") == 34
    assert len(task.eval_rows) == 5
    limited = build_task(replace(config, num_train=8, num_eval=4))
    assert [
        sum(row.columns["mixture_part"] == "b" for row in rows) for rows in (limited.train_rows, limited.eval_rows)
    ] == [6, 1]


MEASURE = """
import json, resource, sys
from maxent_grpo.config.data_sources import TableDataConfig, TableSource
from maxent_grpo.tasks.build import build_task
from maxent_grpo.telemetry.resident import peak_resident_bytes
import maxent_grpo.tasks.text_task
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return peak_resident_bytes() / 2**20, usage.ru_utime + usage.ru_stime
found = [used()]
tasks = []
for path in sys.argv[2:]:
    tasks.append(build_task(TableDataConfig(path=path, cache_dir=sys.argv[1], check_answers=0)))
    found.append(used())
print(json.dumps(found))
"""


def write_many(path: Path, num: int) -> Path:
    padding = "word " * 60
    with path.open("w", encoding="utf-8") as file:
        for n in range(num):
            file.write(f'{{"prompt": "{n} + {n % 7}? {padding}", "answer": {n + n % 7}}}\n')
    return path


def used_for(folder: Path, *paths: Path) -> list[tuple[float, float]]:
    """Peak of memory so far [MiB] and processor time so far [s], before and after each table was opened."""
    command = [sys.executable, "-c", MEASURE, str(folder / "cache"), *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [tuple(entry) for entry in json.loads(done.stdout)]


def test_memory_does_not_grow_with_the_rows_and_places_are_those_of_a_straight_reading(tmp_path: Path) -> None:
    few, many = write_many(tmp_path / "few.jsonl", 5_000), write_many(tmp_path / "many.jsonl", 50_000)
    _, first, second = used_for(tmp_path, few, many)
    assert many.stat().st_size > 16 * 2**20
    assert second[0] - first[0] < 4
    rows = rows_of(table(many))
    straight = [json.loads(line)["answer"] for line in many.read_text().splitlines()]
    for place in random.Random(0).sample(range(50_000), 500):
        assert rows[place].answer == str(straight[place])
        assert rows.place_of(rows[place].row_id) == place


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_a_million_rows_start_in_seconds_and_are_not_kept_in_memory(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"many.{ending}"
    if ending == "jsonl":
        write_many(path, 1_000_000)
    elif ending == "csv":
        with path.open("w", encoding="utf-8") as file:
            file.write("prompt,answer\n")
            file.writelines(f'"{n} + {n % 7}?\n{"word " * 60}",{n + n % 7}\n' for n in range(1_000_000))
    else:
        numbers = range(1_000_000)
        columns = {
            "prompt": [f"{n} + {n % 7}? {'word ' * 60}" for n in numbers],
            "answer": [n + n % 7 for n in numbers],
        }
        pq.write_table(pa.table(columns), path)
    before, after = used_for(tmp_path, path)
    assert after[1] - before[1] < 30
    if ending != "parquet":  # a mapped file counts as far as it was touched, and can be let go of at any time
        assert after[0] - before[0] < 64
    rows = rows_of(table(path, num_eval=None))
    for place in random.Random(0).sample(range(1_000_000), 200):
        assert rows[place].answer == str(place + place % 7)
        assert rows.place_of(rows[place].row_id) == place

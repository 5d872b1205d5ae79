"""Problems of the `datasets` library, from folders that it wrote or reads; nothing here needs a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from maxent_grpo.config.data_sources import HubDataConfig, HubSource
from maxent_grpo.errors import DataError
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.source_rows import SourceRows
from maxent_grpo.tasks.text_task import TextTask
from maxent_grpo.training.types.choices import OnBadRow

GSM = [{"question": f"{n} and {n}?", "answer": f"Add: {n}+{n}=<<{2 * n}>>\n#### {2 * n}"} for n in range(30)]
DAPO = [
    {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"Solve {n}."}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(n), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"id-{n}"},
    }
    for n in range(20)
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def saved(folder: Path, **splits: list[dict[str, Any]]) -> Path:
    datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}).save_to_disk(folder)
    return folder


def written(folder: Path, **splits: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for name, rows in splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def hub(path: Path, **settings: Any) -> TextTask:
    gsm = {"prompt_column": "question", "answer_after": "####", "cache_dir": str(path.parent / "kept")}
    task = build_task(HubDataConfig(path=str(path), **{**gsm, **settings}))
    assert isinstance(task, TextTask)
    return task


def dapo(path: Path, **settings: Any) -> TextTask:
    columns = {"prompt_column": "prompt", "answer_column": "reward_model.ground_truth", "answer_after": None}
    return hub(path, **columns, **settings)


def complaint(path: Path, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        hub(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("make", [saved, written])
def test_splits_of_a_folder_are_trained_and_evaluated_on(tmp_path: Path, make: Any) -> None:
    task = hub(make(tmp_path / "gsm", train=GSM[:20], test=GSM[20:]), eval_split="test")
    assert [row.answer for row in task.train_rows] == [str(2 * n) for n in range(20)]
    assert [row.messages[0]["content"] for row in task.eval_rows] == [row["question"] for row in GSM[20:]]
    assert isinstance(task.train_rows, SourceRows)
    assert isinstance(task.eval_rows, SourceRows)
    for rows in (task.train_rows, task.eval_rows):
        assert [rows.place_of(row.row_id) for row in rows] == list(range(len(rows)))
    assert task.train_rows.where(3) == f"{tmp_path}/gsm, split train, row 4"


def test_a_single_saved_split_is_split_by_a_share(tmp_path: Path) -> None:
    datasets.Dataset.from_list(GSM).shuffle(seed=1).save_to_disk(tmp_path / "gsm")
    task = hub(tmp_path / "gsm", num_train=12)
    assert (len(task.train_rows), len(task.eval_rows)) == (12, 3)


def test_nested_columns_and_conversations_are_read_as_they_are(tmp_path: Path) -> None:
    task = dapo(saved(tmp_path / "dapo", train=DAPO), eval_fraction=0.0)
    assert [row.answer for row in task.train_rows] == [str(n) for n in range(20)]
    row = task.train_rows[7]
    assert row.messages == [{"role": "user", "content": "Solve 7."}]
    assert row.columns == {name: value for name, value in DAPO[7].items() if name != "prompt"}


def test_broken_rows_of_a_split_are_named_or_skipped(tmp_path: Path) -> None:
    rows = [*GSM[:5], {"question": "", "answer": "#### 1"}, *GSM[5:9], {"question": "a", "answer": "none"}]
    folder = saved(tmp_path / "gsm", train=rows)
    with pytest.raises(DataError) as caught:
        hub(folder, eval_fraction=0.0)
    assert str(caught.value).splitlines()[:3] == [
        f"{folder}, split train: 2 records cannot be used:",
        f"  {folder}, split train, row 6: the question in column question is empty",
        f"  {folder}, split train, row 11: the answer in column answer has no '####'",
    ]
    kept = hub(folder, eval_fraction=0.0, on_bad_row=OnBadRow.skip)
    assert ([row.answer for row in kept.train_rows], kept.num_skipped) == ([str(2 * n) for n in range(9)], 2)


def test_what_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", train=GSM, test=GSM)
    assert complaint(folder, split="tran") == f"data.path={folder}: there is no split tran; there are train, test"
    files = written(tmp_path / "files", train=GSM, test=GSM)
    for more in ({}, {"streaming": True, "num_train": 3}):
        assert (
            complaint(files, split="tran", **more)
            == f"data.path={files}: there is no split tran; there are train, test"
        )
    assert complaint(files, prompt_column="questions") == (
        f"{files}, split train: data.prompt_column=questions: no such column; there are question, answer; did you mean question?"
    )
    head = "---\nconfigs:\n- config_name: main\n  data_files: train.jsonl\n- config_name: socratic\n  data_files: test.jsonl\n---\n"
    (files / "README.md").write_text(head)
    assert complaint(files, name="mian") == (
        f"data.path={files}: data.name=mian: no such configuration; there are main, socratic"
    )
    assert complaint(files) == f"data.path={files}: data.name is not set; there are main, socratic"
    assert len(hub(files, name="main", eval_fraction=0.0).train_rows) == 30
    (tmp_path / "empty").mkdir()
    assert complaint(tmp_path / "empty") == f"data.path={tmp_path}/empty: holds no data files that can be read"
    broken = written(tmp_path / "broken", train=GSM)
    (broken / "train.jsonl").write_text('{"question": "a"}\n{"question": \n')
    assert complaint(broken).startswith(f"data.path={broken}, split train: cannot be read (")


def test_code_of_a_data_set_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "scripted").mkdir()
    (tmp_path / "scripted" / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert complaint(tmp_path / "scripted") == (
        f"data.path={tmp_path}/scripted: is made by a Python script, which is never run; use a data set that is stored as files"
    )
    assert not (tmp_path / "ran").exists()


def test_a_hub_that_cannot_be_reached_is_said_with_what_to_do() -> None:
    with pytest.raises(DataError) as caught:
        build_task(HubDataConfig(path="openai/gsm8k", name="main"))
    assert str(caught.value) == (
        "data.path=openai/gsm8k: the hub cannot be reached (Couldn't reach 'openai/gsm8k' on the Hub (OfflineModeIsEnabled)), "
        "and the data set is not in the cache; fetch it once where there is a network, with the same HF_HOME, or name a local "
        "folder that `save_to_disk` wrote"
    )


@pytest.mark.parametrize("make", [saved, written])
def test_a_stream_is_read_once_and_only_as_far_as_asked(tmp_path: Path, make: Any) -> None:
    folder = make(tmp_path / "gsm", train=GSM, test=GSM[:6])
    stream = {"streaming": True, "num_train": 8, "num_eval": 4, "eval_split": "test", "shuffle_buffer": 10}
    task = hub(folder, **stream)
    assert (len(task.train_rows), len(task.eval_rows)) == (8, 4)
    (kept,) = [path for path in (tmp_path / "kept").iterdir() if len(path.read_text().splitlines()) == 8]
    asked = [json.loads(line)["question"] for line in kept.read_text().splitlines()]
    assert [row.messages[0]["content"] for row in task.train_rows] == asked
    assert asked != [row["question"] for row in GSM[:8]]
    assert {row["question"] for row in GSM} > set(asked)
    stamp = kept.stat().st_mtime_ns
    again = hub(folder, **stream)
    assert kept.stat().st_mtime_ns == stamp
    assert [row.row_id for row in again.train_rows] == [row.row_id for row in task.train_rows]
    others = [hub(folder, **{**stream, name: value}) for name, value in (("split_seed", 1), ("shuffle_buffer", 1))]
    first = [[row.answer for row in other.train_rows] for other in (task, *others)]
    assert first[2] == [str(2 * n) for n in range(8)]
    assert len({tuple(answers) for answers in first}) == 3


def test_a_stream_without_an_evaluation_split_holds_rows_out_of_its_own(tmp_path: Path) -> None:
    task = hub(written(tmp_path / "gsm", train=GSM), streaming=True, num_train=18, eval_fraction=0.25)
    assert (len(task.train_rows), len(task.eval_rows)) == (18, 6)
    assert not {row.row_id for row in task.train_rows} & {row.row_id for row in task.eval_rows}


def test_a_stream_keeps_the_columns_asked_for_and_refuses_what_a_file_cannot_hold(tmp_path: Path) -> None:
    import datetime

    rows = [{**row, "when": datetime.datetime(2020, 1, 1), "level": n} for n, row in enumerate(GSM)]
    folder = saved(tmp_path / "gsm", train=rows)
    stream = {"streaming": True, "num_train": 5, "eval_fraction": 0.0}
    assert complaint(folder, **stream) == (
        f"data.path={folder}: column when holds datetime values, which a stream's file cannot keep; name the columns to keep "
        "with data.columns=[...]"
    )
    task = hub(folder, columns=["level"], **stream)
    assert {frozenset(row.columns) for row in task.train_rows} == {frozenset({"level"})}
    assert all(int(row.answer) == 2 * row.columns["level"] for row in task.train_rows)


def test_a_mixture_of_data_sets_has_settings_of_its_own_for_each(tmp_path: Path) -> None:
    saved(tmp_path / "gsm", train=GSM, test=GSM[:3])
    saved(tmp_path / "dapo", train=DAPO)
    sources = {
        "gsm": HubSource(str(tmp_path / "gsm"), "question", "answer", "####", eval_split="test"),
        "dapo": HubSource(str(tmp_path / "dapo")),
    }
    config = HubDataConfig(
        mixture={"gsm": 1.0, "dapo": 1.0}, sources=sources, answer_column="reward_model.ground_truth", eval_fraction=0.1
    )
    task = build_task(config)
    assert isinstance(task, TextTask)
    assert task.mixture is not None
    assert task.mixture.sizes == (30, 18)
    assert len(task.eval_rows) == 3 + 2
    assert [row.columns["mixture_part"] for row in task.eval_rows] == ["gsm"] * 3 + ["dapo"] * 2
    ids = [row.row_id for rows in (task.train_rows, task.eval_rows) for row in rows]
    assert len(set(ids)) == len(ids)

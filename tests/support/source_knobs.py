"""Every setting of `data=table` and `data=hub`, with a change of it under which other rows, or rows otherwise, come out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import datasets

from maxent_grpo.config.data_sources import HubDataConfig, HubSource, SourceDataConfig, TableDataConfig, TableSource
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.text_task import TextTask
from maxent_grpo.training.types.choices import GraderName

SUMS = Path(__file__).parent / "tables" / "sums.jsonl"
"""24 sums: `prompt` and `answer` bare, `question` and `solution` in words with `#### ` before the answer, `level` 0 to 2."""

MARKED = {"answer_column": "solution", "answer_after": "####"}
TABLE_CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "path": ({}, "other.jsonl"),
    "mixture": ({"path": None, "mixture": {"other.jsonl": 1.0}}, {"other.jsonl": 1.0, "more.jsonl": 1.0}),
    "sources": (
        {"path": None, "mixture": {"other.jsonl": 1.0}},
        {"other.jsonl": TableSource(prompt_column="question")},
    ),
    "prompt_column": ({}, "question"),
    "answer_column": ({}, "solution"),
    "answer_after": (MARKED, "Add"),
    "answer_boxed": ({"path": "boxed.jsonl"}, True),
    "columns": ({}, ["level"]),
    "grader": ({}, GraderName.exact),
    "eval_fraction": ({}, 0.25),
    "split_seed": ({}, 1),
    "eval_path": ({}, "other.jsonl"),
}
"""Setting to what else is set, and its other value; paths are those of ``written_tables``."""

STREAM = {"streaming": True, "num_train": 6, "path": "plain"}
HUB_CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "name": ({"path": "named", "name": "main"}, "other"),
    "split": ({}, "test"),
    "eval_split": ({}, "test"),
    "eval_path": ({"split": "test"}, "plain"),
    "streaming": ({"path": "plain", "num_train": 6}, True),
    "shuffle_buffer": (STREAM, 1),
    "sources": ({"path": None, "mixture": {"plain": 1.0}}, {"plain": HubSource(split="test")}),
}


def written_tables(folder: Path) -> None:
    """The tables that the changes name."""
    records = [json.loads(line) for line in SUMS.read_text().splitlines()]
    boxed = [{**record, "answer": f"\\boxed{{{record['answer']}}}"} for record in records]
    for name, rows in (("other", records[3:15]), ("more", records[15:]), ("boxed", boxed)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = {"train": records[:16], "test": records[16:]}
    for name in ("plain", "named"):
        (folder / name).mkdir()
        for split, rows in splits.items():
            (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    configs = ("- config_name: main", "  data_files: train.jsonl", "- config_name: other", "  data_files: test.jsonl")
    (folder / "named" / "README.md").write_text("\n".join(["---", "configs:", *configs, "---", ""]))
    saved = datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in splits.items()})
    saved.save_to_disk(folder / "saved")


def seen_rows(config: SourceDataConfig) -> tuple[Any, ...]:
    """Everything that a task's rows say, and its grader."""
    task = cast(TextTask, build_task(config))
    rows = [
        [(row.row_id, row.messages, row.answer, row.columns) for row in rows]
        for rows in (task.train_rows, task.eval_rows)
    ]
    return (*rows, task.grader)


def before_and_after(folder: Path, setting: str, *, hub: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The rows without and with a change of one setting; the working folder is ``folder``."""
    others, value = (HUB_CHANGES if hub else TABLE_CHANGES)[setting]
    base = HubDataConfig(path="saved") if hub else TableDataConfig(path=str(SUMS))
    base = replace(base, cache_dir=str(folder / "kept"), **others)
    return seen_rows(base), seen_rows(replace(base, **{setting: value}))

"""Small tables on disk, and the tasks that read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from maxent_grpo.config.data_sources import TableDataConfig
from maxent_grpo.errors import DataError
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.source_rows import SourceRows
from maxent_grpo.tasks.text_task import TextTask

SUMS = [{"prompt": f"{n} + {n % 3}?", "answer": n + n % 3, "level": {"depth": n % 2}} for n in range(10)]


def write_jsonl(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def table(path: Path, cache: Path | None = None, **chosen: Any) -> TextTask:
    chosen = {"eval_fraction": 0.0, "check_answers": 0, **chosen}
    task = build_task(TableDataConfig(path=str(path), cache_dir=str(cache or path.parent / "cache"), **chosen))
    assert isinstance(task, TextTask)
    return task


def rows_of(task: TextTask) -> SourceRows:
    assert isinstance(task.train_rows, SourceRows)
    return task.train_rows


def questions(rows: Sequence[Any]) -> list[str]:
    return [row.messages[-1]["content"] for row in rows]


def complaint(path: Path, **chosen: Any) -> str:
    with pytest.raises(DataError) as caught:
        table(path, **chosen)
    return str(caught.value)

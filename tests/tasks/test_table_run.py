"""A run on a table: what it asks, what it grades against, and that it goes on only with the same data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.runs import completion_lines, evaluation_lines, metric_lines, train
from support.source_knobs import SUMS

from maxent_grpo.errors import CheckpointError

STEPS = "optimization.total_training_steps={}"


def a_run(data: Path) -> tuple[str, ...]:
    words = (
        "scoring=dr_grpo",
        "data=table",
        f"data.path={data}",
        "data.prompt_column=question",
        "data.eval_fraction=0.2",
    )
    return (
        *words,
        "data.answer_column=solution",
        "data.answer_after='####'",
        "data.num_train=9",
        "data.grader=exact",
    )


def test_a_run_asks_the_tables_questions_and_goes_on_exactly(tmp_path: Path) -> None:
    data = Path(shutil.copy(SUMS, tmp_path / "sums.jsonl"))
    train(tmp_path / "whole", *a_run(data), STEPS.format(4))
    train(tmp_path / "first", *a_run(data), STEPS.format(2))
    train(tmp_path / "rest", *a_run(data), STEPS.format(4), resume_from=tmp_path / "first")
    lines = completion_lines(tmp_path / "whole")
    assert completion_lines(tmp_path / "rest") == lines
    losses = [[line.get("loss/total") for line in metric_lines(tmp_path / name)] for name in ("whole", "rest")]
    assert losses[0] == losses[1]
    records = [json.loads(line) for line in data.read_text().splitlines()]
    asked = {line["row_id"]: line["prompt"] for line in lines}
    assert len(asked) == 9
    for row_id, prompt in asked.items():
        assert prompt == f"<bos><|user|>{records[int(row_id.split('-')[1]) - 1]['question']}<|assistant|>"
    held_out = {line["row_id"] for line in evaluation_lines(tmp_path / "whole")}
    assert len(held_out) == 4
    assert not held_out & set(asked)


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    data = Path(shutil.copy(SUMS, tmp_path / "sums.jsonl"))
    train(tmp_path / "first", *a_run(data), "evaluation.enabled=false")
    text = data.read_text()
    data.write_text(text.replace("#### 3", "#### 4", 1))
    with pytest.raises(
        CheckpointError, match="cannot resume: the content of the data has changed since the checkpoint"
    ):
        train(
            tmp_path / "other",
            *a_run(data),
            "evaluation.enabled=false",
            STEPS.format(3),
            resume_from=tmp_path / "first",
        )
    data.write_text(text)
    result = train(
        tmp_path / "same", *a_run(data), "evaluation.enabled=false", STEPS.format(3), resume_from=tmp_path / "first"
    )
    assert result.global_step == 3

"""Complaints about W&B: runs that are resumed, and completions that nobody can read afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
import wandb
from support.runs import completion_lines, configured
from support.wandb_run import OfflinePart, offline_parts

from maxent_grpo.training.setup import run_from_config

SETTINGS = (
    *("logging=wandb", "logging.wandb.mode=offline", "evaluation.enabled=false", "scoring=dr_grpo"),
    *("checkpoint.every_n_steps=1", "checkpoint.keep_last=0", "optimization.total_training_steps=4"),
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[OfflinePart]]:
    """A run of four steps that was left after three, and resumed in its folder from the checkpoint of step 1."""
    run = tmp_path_factory.mktemp("tracked") / "run"
    run_from_config(configured(run, *SETTINGS), until=3)
    run_from_config(configured(run, *SETTINGS, resume_from=run / "checkpoints" / "step_1"))
    found = offline_parts(run)
    wandb.teardown()
    return run, found


def test_a_resumed_run_is_one_wandb_run_whose_steps_increase(parts: tuple[Path, list[OfflinePart]]) -> None:
    """Complaint 67 (huggingface/trl PR #3185; verl-project/verl#2783): step and run break on resume."""
    _, [first, second] = parts
    assert first.id == second.id
    assert [*first.steps, *second.steps] == [1, 2, 3, 4]
    assert [line["_step"] for part in (first, second) for line in part.history] == [1, 2, 3, 4]


def test_completions_of_every_step_are_in_a_table_with_their_step(parts: tuple[Path, list[OfflinePart]]) -> None:
    """Complaint 66 (huggingface/trl PR #3217, #2045): the table lacks rows and is overwritten at each step."""
    run, found = parts
    rows = [row for part in found for table in part.tables().values() for row in table]
    lines = completion_lines(run)
    assert [(row["step"], row["prompt"], row["completion"]) for row in rows] == [
        (line["step"], line["prompt"], line["completion"]) for line in lines
    ]
    assert {row["step"] for row in rows} == {1, 2, 3, 4}
    assert all({"reward/task", "reward/spread", "advantage"} <= row.keys() for row in rows)

"""One of two processes is killed inside a checkpoint: the one before is whole, both end, and the same command goes on from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.processes import FileOperation, Start, begin, wait_until
from support.ranks import free_port, place_environment
from support.runs import small
from support.same_run import assert_same_run

from maxent_grpo.training.checkpoint.manifest import verify

RUN = (
    *("scoring=dr_grpo", "evaluation.enabled=false", "optimization.total_training_steps=4", "data.num_train=16"),
    *("optimization.num_iterations=2", "checkpoint.every_n_steps=1", "checkpoint.resume_from=latest"),
)


def pair(run_dir: Path, dies_at: FileOperation | None = None) -> list[Start]:
    """The two processes of a run; the main one may be killed."""
    port, words = free_port(), (*small(()), *RUN)
    starts = [
        Start(
            run_dir, words, as_command=True, environment=place_environment(rank, 2, port), said=run_dir.parent / "said"
        )
        for rank in range(2)
    ]
    return [replace(starts[0], dies_at=dies_at), starts[1]]


def finished(starts: list[Start]) -> list[int | None]:
    processes = [begin(start) for start in starts]
    for process in processes:
        process.join(180)
    return [process.exitcode for process in processes]


def check_what_is_left(run_dir: Path) -> None:
    folder = run_dir / "checkpoints"
    verify(folder / (folder / "latest").read_text().strip())


@pytest.mark.slow
def test_a_process_that_is_killed_inside_a_checkpoint_costs_no_step(tmp_path: Path) -> None:
    whole = tmp_path / "whole" / "run"
    whole.parent.mkdir()
    assert finished(pair(whole)) == [0, 0], (whole.parent / "said").read_text()

    main = tmp_path / "main" / "run"
    main.parent.mkdir()
    statuses = finished(pair(main, FileOperation("open", ".tmp-step_3-3/state/rollout.json")))
    assert statuses[0] == -9
    assert statuses[1] not in (None, 0)
    check_what_is_left(main)
    assert (main / "checkpoints" / "latest").read_text().strip() == "step_2"
    assert finished(pair(main)) == [0, 0], (main.parent / "said").read_text()
    assert_same_run(whole, main)

    other = tmp_path / "other" / "run"
    other.parent.mkdir()
    processes = [begin(start) for start in pair(other)]
    assert wait_until(processes[1], lambda: any((other / "checkpoints").glob(".tmp-step_2-*")))
    processes[1].kill()
    for process in processes:
        process.join(180)
    assert all(process.exitcode not in (None, 0) for process in processes)
    check_what_is_left(other)
    assert finished(pair(other)) == [0, 0], (other.parent / "said").read_text()
    assert_same_run(whole, other)

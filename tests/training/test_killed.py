"""A run that is killed at any moment and started again with the same command ends as the run that was left alone."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes import FileOperation, Start, begin, finish, wait_until
from support.runs import evaluation_lines, train
from support.same_run import assert_same_run

from maxent_grpo.training.checkpoint.manifest import verify

RUN = (
    *("scoring=maxent", "controller=effective_size", "controller.target_size=2", "scoring.weighting.beta=0.1"),
    *("optimization.total_training_steps=10", "optimization.num_iterations=2", "evaluation.every_n_steps=3"),
    *("checkpoint.every_n_steps=2", "checkpoint.keep_last=2", "checkpoint.final_model=true", "data.num_train=20"),
)
AGAIN = {"checkpoint.resume_from": "latest"}

Moment = FileOperation | tuple[int, float]
"""Before an operation on a file, or so many seconds after metrics.jsonl has so many lines."""

FIRST_SAVE = FileOperation("open", ".tmp-step_2-")
CONTROLLER = FileOperation("os.rename", "controller_state.json", 6)
RECORDED = FileOperation("open", ".controller_state.json.", 5)
"""The lines of a step are written, and nothing that follows them."""
COMMITTED = FileOperation("os.rename", "checkpoints/latest", 1)
"""A checkpoint has its name, and `latest` names the one before."""
ROTATION = FileOperation("shutil.rmtree", ".tmp-deleted-")
LATER_SAVE = FileOperation("open", "state/controller.json", 2)
MODEL = FileOperation("os.rename", ".model.partial-")
TAKEN_BACK = FileOperation("os.rename", "completions.jsonl")
"""On the way on: the metrics after the checkpoint are taken back, and the completions are not yet."""
AIMED = (FIRST_SAVE, CONTROLLER, RECORDED, COMMITTED, ROTATION, LATER_SAVE, MODEL, TAKEN_BACK)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody kills."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    train(run_dir, *RUN)
    return run_dir


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def lines(run_dir: Path, name: str) -> int:
    path = run_dir / name
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def check_what_is_left(run_dir: Path) -> None:
    """Every visible checkpoint is whole."""
    for name in names(run_dir / "checkpoints"):
        if name.startswith("step_"):
            verify(run_dir / "checkpoints" / name)


def kill_at(start: Start, moment: Moment) -> bool:
    """Start the run and kill it at a moment; whether it was killed, or ended before."""
    if isinstance(moment, FileOperation):
        process = begin(replace(start, dies_at=moment))
    else:
        process = begin(start)
        steps, seconds = moment
        wait_until(process, lambda: lines(start.run_dir, "metrics.jsonl") >= steps)
        process.join(seconds)
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == -signal.SIGKILL


def assert_undisturbed(undisturbed: Path, run_dir: Path) -> None:
    assert_same_run(undisturbed, run_dir)
    assert evaluation_lines(run_dir) == evaluation_lines(undisturbed)
    assert (run_dir / "model" / "model.safetensors").read_bytes() == (
        undisturbed / "model" / "model.safetensors"
    ).read_bytes()
    assert set(names(run_dir)) == set(names(undisturbed))
    assert set(names(run_dir / "checkpoints")) == set(names(undisturbed / "checkpoints"))


def killed_until_done(run_dir: Path, moments: Sequence[Moment]) -> int:
    """Kill the run at the moments, one start after another, then let it end; how many kills hit it."""
    start = Start(run_dir, RUN, settings=AGAIN)
    kills = 0
    for moment in moments:
        kills += kill_at(start, moment)
        check_what_is_left(run_dir)
    assert finish(start) == 0
    return kills


def test_a_run_killed_where_it_writes_ends_as_if_nothing_had_been(undisturbed: Path, tmp_path: Path) -> None:
    """In its first checkpoint, in the controller's file, before `latest`, in a rotation, and in a step, on the way on each time."""
    moments = [FIRST_SAVE, CONTROLLER, COMMITTED, ROTATION, (9, 0.02)]
    assert killed_until_done(tmp_path / "run", moments) >= 4
    assert_undisturbed(undisturbed, tmp_path / "run")


@pytest.mark.slow
def test_a_run_killed_at_thirty_moments_ends_as_if_nothing_had_been(undisturbed: Path, tmp_path: Path) -> None:
    """Each run is killed three times: twice anywhere, from the first moment of its start on, and once at an aimed moment."""
    rng = random.Random()
    kills, number = 0, 0
    while kills < 30:
        moments: list[Moment] = [(rng.randint(0, 4), rng.uniform(0.0, 0.3)), (rng.randint(3, 9), rng.uniform(0.0, 0.2))]
        moments.insert(number % 3, AIMED[number % len(AIMED)])
        kills += killed_until_done(tmp_path / str(number), moments)
        assert_undisturbed(undisturbed, tmp_path / str(number))
        number += 1
    assert number < 20


def test_a_run_that_is_going_on_is_left_alone(tmp_path: Path) -> None:
    """Two processes in one directory: the second is refused while the first lives, and goes on when it was killed."""
    first = begin(Start(tmp_path / "run", RUN))
    assert wait_until(first, lambda: lines(tmp_path / "run", "metrics.jsonl") > 1)
    said = tmp_path / "said"
    assert finish(Start(tmp_path / "run", ("checkpoint.resume_from=latest",), as_command=True, said=said)) == 2
    assert f"run.dir={tmp_path}/run: a run is going on there (process {first.pid} on " in said.read_text()
    assert first.is_alive()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    # the file is there still and names a number that another process may have by now: it locks nothing
    lock = tmp_path / "run" / ".lock"
    lock.write_text(lock.read_text().replace(str(first.pid), str(os.getpid())))
    assert finish(Start(tmp_path / "run", RUN, settings=AGAIN)) == 0
    assert not lock.exists()

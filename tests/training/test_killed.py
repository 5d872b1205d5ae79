"""A run that is killed at any moment and started again with the same command ends as the run that was left alone."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import Start, begin, finish, wait_until
from support.runs import evaluation_lines, train
from support.same_run import assert_same_run

from maxent_grpo.training.checkpoint.manifest import verify

RUN = (
    *("scoring=maxent", "controller=effective_size", "controller.target_size=2", "scoring.weighting.beta=0.1"),
    *("optimization.total_training_steps=10", "optimization.num_iterations=2", "evaluation.every_n_steps=3"),
    *("checkpoint.every_n_steps=2", "checkpoint.keep_last=2", "checkpoint.final_model=true", "data.num_train=20"),
)
AGAIN = {"checkpoint.resume_from": "latest"}

Moment = Callable[[Path], bool]


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


def saving(run_dir: Path) -> bool:
    """A checkpoint is being written, and another one is there already."""
    here = names(run_dir / "checkpoints")
    return "latest" in here and any(name.startswith(".tmp-step_") for name in here)


def saving_the_first(run_dir: Path) -> bool:
    return any(name.startswith(".tmp-step_") for name in names(run_dir / "checkpoints"))


def rotating(run_dir: Path) -> bool:
    return any(name.startswith(".tmp-deleted-") for name in names(run_dir / "checkpoints"))


def writing_metrics(run_dir: Path) -> bool:
    """The line of a step is there, and its completions or the controller's state are not yet."""
    return lines(run_dir, "metrics.jsonl") >= 6


def writing_the_controller(run_dir: Path) -> bool:
    return any(name.startswith(".controller_state.json.") for name in names(run_dir))


def sampling(run_dir: Path) -> bool:
    """Between the line of a step and the next one, which begins with a rollout."""
    return lines(run_dir, "completions.jsonl") >= 4 * 16


def evaluating(run_dir: Path) -> bool:
    return lines(run_dir, "evaluations.jsonl") > 4


def writing_the_model(run_dir: Path) -> bool:
    return any(name.startswith(".model.partial-") for name in names(run_dir))


AIMED: tuple[Moment, ...] = (
    *(saving, writing_metrics, writing_the_controller, rotating, saving_the_first, sampling, evaluating),
    writing_the_model,
)


def check_what_is_left(run_dir: Path) -> None:
    """Every visible checkpoint is whole."""
    for name in names(run_dir / "checkpoints"):
        if name.startswith("step_"):
            verify(run_dir / "checkpoints" / name)


def kill_at(start: Start, moment: Moment | float) -> bool:
    """Start the run and kill it at a moment, or after some seconds; whether it was killed."""
    process = begin(start)
    if isinstance(moment, float):
        process.join(moment)
    else:
        wait_until(process, lambda: moment(start.run_dir))
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


def killed_until_done(run_dir: Path, moments: list[Moment | float]) -> int:
    """Kill the run at the moments, one start after another, then let it end; how many kills hit it."""
    start = Start(run_dir, RUN, settings=AGAIN)
    kills = 0
    for moment in moments:
        kills += kill_at(start, moment)
        check_what_is_left(run_dir)
    assert finish(start) == 0
    return kills


def test_a_run_killed_where_it_writes_ends_as_if_nothing_had_been(undisturbed: Path, tmp_path: Path) -> None:
    """In the first checkpoint, in a line of metrics, in a later checkpoint, in the controller's file, and after a while."""
    moments: list[Moment | float] = [saving_the_first, writing_metrics, saving, writing_the_controller, 0.5]
    kills = killed_until_done(tmp_path / "run", moments)
    assert kills >= 4
    assert_undisturbed(undisturbed, tmp_path / "run")


@pytest.mark.slow
def test_a_run_killed_at_thirty_moments_ends_as_if_nothing_had_been(undisturbed: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    assert finish(Start(tmp_path / "timed", RUN)) == 0
    whole = time.monotonic() - began
    rng = random.Random()
    kills, number = 0, 0
    while kills < 30:
        # each run is killed three times before it may end, the second and third time on its way on
        moments: list[Moment | float] = [rng.uniform(0.0, whole) for _ in range(3)]
        moments[number % 3] = AIMED[number % len(AIMED)]
        kills += killed_until_done(tmp_path / str(number), moments)
        assert_undisturbed(undisturbed, tmp_path / str(number))
        number += 1


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

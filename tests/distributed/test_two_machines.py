"""A run over two machines, which meet over a network and share a file system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.equal_record import assert_same_completions, assert_same_evaluations, assert_same_lines
from support.launches import DEADLINE, Launch, after_two_steps, wait_for
from support.runs import SMALL, completion_lines, evaluation_lines, metric_lines, train
from support.two_machines import Machine, can_be_made, two_machines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_be_made(), reason="network namespaces need Linux, iproute2 and root"),
]

ENDS_WITHIN = 300.0
"""What is cut off is missed after two minutes, and a machine that is busy takes longer [seconds]."""


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    with two_machines() as pair:
        yield pair


def launch(machines: tuple[Machine, Machine], folder: Path, *arguments: str) -> tuple[Launch, Launch]:
    """The same command on both."""
    first, second = machines
    every = [*SMALL, f"run.dir={folder / 'run'}", *arguments]
    return first.launch(every, folder / "first", first.address), second.launch(every, folder / "second", first.address)


def under_way(machines: tuple[Machine, Machine], folder: Path) -> tuple[Launch, Launch]:
    """A long run that has taken some steps."""
    long = ("optimization.total_training_steps=100000", "evaluation.enabled=false", "checkpoint.every_n_steps=1")
    first, second = launch(machines, folder, *long)
    after_two_steps(first, folder / "run")
    return first, second


def test_two_machines_are_one_run(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    changed = ("model.dtype=float64", "data.num_eval=3", "optimization.minibatches=2")
    first, second = launch(machines, tmp_path, *changed, "logging.console=plain")
    ended, other = first.wait(DEADLINE), second.wait(DEADLINE)
    assert (ended.status, other.status) == (0, 0), ended.err + other.err
    assert ended.out.count("finished 2 steps") == 1
    assert other.out == ""
    train(tmp_path / "one", *changed)
    assert_same_lines(metric_lines(tmp_path / "one"), metric_lines(tmp_path / "run"))
    assert_same_completions(completion_lines(tmp_path / "one"), completion_lines(tmp_path / "run"))
    assert_same_evaluations(evaluation_lines(tmp_path / "one"), evaluation_lines(tmp_path / "run"))


def test_a_machine_that_dies_ends_the_run_of_the_other(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    first, second = under_way(machines, tmp_path)
    second.kill()
    ended = first.wait(ENDS_WITHIN)
    assert ended.status != 0
    assert "train.py: process 1 of 2: it has ended without a word, as one does that is killed" in ended.err
    assert (tmp_path / "run" / "checkpoints" / "latest").is_file()


def test_a_machine_that_is_cut_off_ends_the_run_of_both(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    first, second = under_way(machines, tmp_path)
    try:
        machines[1].unplug()
        ended = first.wait(ENDS_WITHIN)
        assert ended.status != 0
        assert "train.py: process 1 of 2: it has ended without a word, as one does that is killed" in ended.err
        wait_for(lambda: not second.workers(), ENDS_WITHIN)
        assert "train.py: process 0 of 2: it cannot be reached any more, or its launcher cannot" in second.said()
    finally:
        second.kill()  # its launcher itself waits for an answer

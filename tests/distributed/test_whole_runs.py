"""A run of two processes, from the command line to its files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.equal_record import assert_same_completions, assert_same_evaluations, assert_same_lines
from support.launches import DEADLINE, TORCHRUN, Launch, accelerate_launch
from support.ranks import call_together
from support.runs import SMALL, completion_lines, evaluation_lines, metric_lines, train


def launchers() -> list[object]:
    return [
        pytest.param(TORCHRUN, id="torchrun"),
        pytest.param(accelerate_launch(), id="accelerate", marks=pytest.mark.slow),
    ]


@pytest.mark.parametrize("launcher", launchers())
def test_two_processes_are_one_run(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    changed = ("model.dtype=float64", "data.num_eval=3", "optimization.minibatches=2")
    ended = Launch(launcher, [*SMALL, *changed, "logging.console=plain"], tmp_path).wait(DEADLINE)
    assert ended.status == 0, ended.err
    [run_dir] = (tmp_path / "outputs").glob("2*/*")
    assert [line["step"] for line in metric_lines(run_dir)] == [0, 1, 2]
    assert ended.out.count("finished 2 steps") == 1
    assert ended.err.count("train.py: warning:") == 1
    assert len(ended.err.splitlines()) == 1, ended.err
    assert not (run_dir / ".lock").exists()
    assert (run_dir / "checkpoints" / "latest").read_text().strip() == "step_2"

    train(tmp_path / "one", *changed)
    assert_same_lines(metric_lines(tmp_path / "one"), metric_lines(run_dir))
    assert_same_completions(completion_lines(tmp_path / "one"), completion_lines(run_dir))
    assert_same_evaluations(evaluation_lines(tmp_path / "one"), evaluation_lines(run_dir))


@pytest.mark.slow
def test_all_processes_end_with_the_same_weights_and_one_writes(tmp_path: Path) -> None:
    first, second = call_together(
        "support.whole_runs:held", str(tmp_path / "run"), "controller=effective_size", "controller.target_size=2"
    )
    assert first["digest"] == second["digest"]
    assert first["controller"] == second["controller"]
    assert first["step"] == second["step"] == 2
    assert first["run_dir"] == second["run_dir"]
    assert first["writers"] > 0
    assert second["writers"] == 0
    assert [line["step"] for line in metric_lines(tmp_path / "run")] == [0, 1, 2]

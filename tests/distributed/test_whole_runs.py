"""A run of two processes, from the command line to its files."""

from __future__ import annotations

from pathlib import Path

from support.launches import DEADLINE, TORCHRUN, Launch
from support.runs import SMALL, metric_lines


def test_two_processes_are_one_run(tmp_path: Path) -> None:
    ended = Launch(TORCHRUN, [*SMALL, "logging.console=plain"], tmp_path).wait(DEADLINE)
    assert ended.status == 0, ended.err
    [run_dir] = (tmp_path / "outputs").glob("2*/*")
    assert [line["step"] for line in metric_lines(run_dir)] == [0, 1, 2]
    assert ended.out.count("finished 2 steps") == 1
    assert ended.err.count("train.py: warning:") == 1
    assert len(ended.err.splitlines()) == 1, ended.err
    assert not (run_dir / ".lock").exists()
    assert (run_dir / "checkpoints" / "latest").read_text().strip() == "step_2"

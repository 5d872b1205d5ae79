"""What becomes of a run when one of its processes fails, is killed, or is asked to stop."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from support.launches import DEADLINE, TORCHRUN, Ended, Launch, after_two_steps, wait_for
from support.ranks import call_together
from support.runs import SMALL, checkpoint_of, metric_lines

from maxent_grpo.training import peer_watch

END_TOGETHER = 90.0
"""Long enough for a machine that is busy with something else, and far below the half hour that a collective waits [seconds]."""


def launched(tmp_path: Path, grader: str, *more: str) -> Launch:
    grading = f"reward.functions.spread=support.one_rank_fails:{grader}"
    return Launch(TORCHRUN, [*SMALL, "run.dir=run", "evaluation.enabled=false", grading, *more], tmp_path)


def log_of(folder: Path) -> str:
    return (folder / "run" / "run.log").read_text()


def end_of(launch: Launch) -> tuple[Ended, float]:
    began = time.monotonic()
    return launch.wait(END_TOGETHER), time.monotonic() - began


def own_lines(text: str) -> list[str]:
    """What the runs' processes have written to standard error, without the launcher's report."""
    lines = [line for line in text.splitlines() if line.startswith(("train.py:", "[rank"))]
    return [line for line in lines if not line.startswith("train.py: warning:")]


def test_what_one_process_raises_ends_all_and_is_said_once(tmp_path: Path) -> None:
    ended = launched(tmp_path, "raises").wait(DEADLINE)
    assert ended.status != 0
    [line] = own_lines(ended.err)
    assert line.startswith("train.py: process 1 of 2: ")
    assert "the grader is out of chalk" in line
    assert "stopped: process 1 of 2: " in log_of(tmp_path)
    assert "the grader is out of chalk" in log_of(tmp_path)
    assert not (tmp_path / "run" / ".lock").exists()


@pytest.mark.slow
def test_a_process_that_is_stuck_elsewhere_is_ended_too(tmp_path: Path) -> None:
    launch = launched(tmp_path, "raises_and_holds")
    wait_for(lambda: "out of chalk" in launch.said())
    ended, _ = end_of(launch)
    assert len(own_lines(ended.err)) == 1
    assert "stopped: process 1 of 2: " in log_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_is_noticed(tmp_path: Path, rank: int) -> None:
    launch = launched(tmp_path, "takes_its_time", "optimization.total_training_steps=500")
    after_two_steps(launch, tmp_path / "run")
    os.kill(launch.workers()[rank], signal.SIGKILL)
    ended, _ = end_of(launch)
    assert ended.status != 0
    [line] = own_lines(ended.err)
    assert line == f"train.py: process {rank} of 2: it has ended without a word, as one does that is killed"
    if rank == 1:
        assert "stopped: process 1 of 2: it has ended without a word" in log_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["launcher", "one process"])
def test_a_wish_to_stop_saves_whoever_hears_of_it(tmp_path: Path, to: str) -> None:
    launch = launched(tmp_path, "takes_its_time", "optimization.total_training_steps=500")
    after_two_steps(launch, tmp_path / "run")
    if to == "launcher":
        launch.process.terminate()
    else:
        os.kill(launch.workers()[1], signal.SIGUSR1)
    ended, _ = end_of(launch)
    assert ended.status != 0
    steps = metric_lines(tmp_path / "run")[-1]["step"]
    assert checkpoint_of(tmp_path / "run").name == f"step_{int(steps)}"
    assert f"after step {int(steps)}, which is saved" in log_of(tmp_path)
    assert ended.err.count("the run stops after this step") <= 1


def test_wrong_settings_are_said_once(tmp_path: Path) -> None:
    ended = Launch(TORCHRUN, ["seed=soon", "scoring.tau=-1", "run.dir=run"], tmp_path).wait(DEADLINE)
    assert ended.status != 0
    assert ended.err.count("train.py: 2 configuration problems:") == 1
    assert "Traceback" not in ended.err.partition("configuration problems")[0]
    assert own_lines(ended.err) == ["train.py: 2 configuration problems:"]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_sampler_that_gives_up_on_one_process_saves_the_run_on_all(tmp_path: Path) -> None:
    said = call_together("support.whole_runs:sampler_fails_on_one", str(tmp_path / "run"), 3, True)
    assert "GenerationError: the sampler is out of paper. The run is saved at step 2" in said[1] + said[0]
    assert all("the sampler is out of paper. The run is saved at step 2" in text for text in said)
    assert checkpoint_of(tmp_path / "run").name == "step_2"


@pytest.mark.slow
def test_log_probs_that_one_process_lacks_save_the_run_on_all(tmp_path: Path) -> None:
    target, folder = "support.whole_runs:sampler_fails_on_one", str(tmp_path / "run")
    said = call_together(target, folder, 3, False, "scoring=seed_grpo")
    assert all("the sampler reported no log-probability for" in text for text in said), said
    assert all("The run is saved at step 2" in text for text in said), said
    assert checkpoint_of(tmp_path / "run").name == "step_2"


def test_patience_is_shorter_than_the_launchers() -> None:
    """torchrun kills 30 s after SIGTERM: by then the record is closed."""
    assert peer_watch.SILENCE_OF_SUSPECTS + peer_watch.FREEDOM + peer_watch.CLOSING + 3 * peer_watch.INTERVAL < 30

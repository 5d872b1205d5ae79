"""Runs that are asked to stop, or run out of time: saved, with an exit status that says so, and continued by the same command."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from accelerate import Accelerator
from support.processes import Start, begin, finish, forked, wait_until
from support.ranks import free_port
from support.runs import checkpoint_of, configured, metric_lines, only_reward, small, train
from support.same_run import assert_same_run
from support.stops import Sends
from support.two_ranks_faults import meet

from maxent_grpo.config.run import Requeue
from maxent_grpo.training.loop import RunResult
from maxent_grpo.training.requeue import wants_requeue
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.stopping import EXIT_STATUS, StopCause, Stopping

RUN = ("scoring=dr_grpo", "evaluation.enabled=false", "optimization.total_training_steps=4")
ASKED = {
    signal.SIGTERM: (StopCause.terminate, 143),
    signal.SIGINT: (StopCause.interrupt, 130),
    signal.SIGUSR1: (StopCause.notice, 75),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody stops."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(run_dir, *RUN)
    return run_dir


def stopped_at(run_dir: Path, *signals: signal.Signals, step: int = 2) -> RunResult:
    handlers = {each: signal.getsignal(each) for each in ASKED}
    result = run_from_config(configured(run_dir, *RUN), watchers=[Sends(step, *signals)])
    assert {each: signal.getsignal(each) for each in ASKED} == handlers
    return result


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)
def test_a_signal_saves_the_run_after_its_step_and_resuming_ends_it_as_if_nothing_had_been(
    whole: Path, tmp_path: Path, asked: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    result = stopped_at(tmp_path / "run", asked)
    cause, status = ASKED[asked]
    assert (result.global_step, result.stopped, EXIT_STATUS[result.stopped]) == (2, cause, status)
    assert f"{asked.name}: the run stops after this step and saves" in capfd.readouterr().err
    assert checkpoint_of(tmp_path / "run").name == "step_2"
    assert not (tmp_path / "run" / "model").exists()
    said = (tmp_path / "run" / "run.log").read_text()
    assert f"stopped by {asked.name} after step 2, which is saved; continue with python train.py checkpoint" in said
    assert train(tmp_path / "run", *RUN, resume_from=tmp_path / "run").stopped is StopCause.none
    assert_same_run(whole, tmp_path / "run")


def test_what_is_saved_at_a_stop_is_this_run_and_not_an_earlier_one_that_got_as_far(tmp_path: Path) -> None:
    """Trained anew from step 1, on a longer schedule's curve, in a folder whose latest checkpoint is of step 4 already."""
    linear = (*RUN, "optimization.lr_scheduler_type=linear")
    longer = (*linear, "optimization.total_training_steps=6", "checkpoint.every_n_steps=null")
    train(tmp_path / "run", *linear, "checkpoint.every_n_steps=1", "checkpoint.keep_last=0")
    first = checkpoint_of(tmp_path / "run", 1)
    train(tmp_path / "left alone", *longer, resume_from=first)
    config = configured(tmp_path / "run", *longer, resume_from=first)
    assert run_from_config(config, watchers=[Sends(4, signal.SIGTERM)]).global_step == 4
    train(tmp_path / "run", *longer, resume_from=tmp_path / "run")
    assert_same_run(tmp_path / "left alone", tmp_path / "run")


def test_the_gravest_of_several_signals_is_the_cause(tmp_path: Path) -> None:
    signals = (signal.SIGUSR1, signal.SIGUSR1, signal.SIGINT, signal.SIGTERM)
    assert stopped_at(tmp_path / "run", *signals).stopped is StopCause.interrupt


def test_a_signal_in_the_last_step_finds_a_finished_run(whole: Path, tmp_path: Path) -> None:
    assert stopped_at(tmp_path / "run", signal.SIGTERM, step=4).stopped is StopCause.none
    assert_same_run(whole, tmp_path / "run")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert stopped_at(tmp_path / "run", signal.SIGINT).stopped is StopCause.none
    finally:
        signal.signal(signal.SIGINT, former)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """In a step that takes a minute."""
    said = tmp_path / "said"
    process = begin(Start(tmp_path / "run", (*RUN, *only_reward("takes_a_minute")), said=said))
    log = tmp_path / "run" / "run.log"
    assert wait_until(process, lambda: log.is_file() and "steps 1 to 4" in log.read_text())
    time.sleep(0.3)
    began = time.monotonic()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    assert wait_until(process, lambda: "a second one ends it at once" in said.read_text())
    assert process.is_alive()
    os.kill(process.pid, signal.SIGTERM)
    process.join(30)
    assert process.exitcode == -signal.SIGTERM
    assert time.monotonic() - began < 30


def test_the_run_stops_when_two_of_its_longest_turns_would_not_fit_any_more() -> None:
    now, alone = [100.0], Accelerator(cpu=True)
    stopping = Stopping(60.0, clock=lambda: now[0])
    seen: list[StopCause] = []
    for seconds in (5.0, 12.0, 5.0, 5.0, 5.0, 5.0, 5.0):
        stopping.turn()
        seen.append(stopping.decide(alone))
        now[0] += seconds
    # after 5, 17, 22, 27, 32, 37 s: 24 s are kept back once a turn of 12 s was seen
    assert seen == [StopCause.none] * 6 + [StopCause.time_limit]
    late = Stopping(60.0, clock=lambda: now[0], started=now[0] - 60.0)
    assert late.decide(alone) is StopCause.time_limit
    assert Stopping(None, clock=lambda: now[0]).decide(alone) is StopCause.none


def test_a_run_out_of_time_saves_in_time_and_goes_on(tmp_path: Path) -> None:
    long = (*RUN, "optimization.total_training_steps=2000", "checkpoint.every_n_steps=3")
    config = configured(tmp_path / "run", *long, settings={"run.max_hours": 4 / 3600})
    began = time.monotonic()
    result = run_from_config(config)
    assert time.monotonic() - began < 8.0  # not 4: a machine may stand still for longer than the two turns kept back
    assert (result.stopped, EXIT_STATUS[result.stopped]) == (StopCause.time_limit, 75)
    assert 0 < result.global_step < 2000
    last = metric_lines(tmp_path / "run")[-1]["step"]
    assert checkpoint_of(tmp_path / "run").name == f"step_{result.global_step}" == f"step_{last}"
    further = (*RUN, f"optimization.total_training_steps={result.global_step + 1}")
    train(tmp_path / "run", *further, resume_from=tmp_path / "run")
    assert [line["step"] for line in metric_lines(tmp_path / "run")] == list(range(1, result.global_step + 2))


def test_what_one_process_meets_all_of_them_decide_alike(tmp_path: Path) -> None:
    """Two processes: a signal to one of them stops both, and a loss that is not finite in one is an error of both."""
    port = free_port()
    ranks = [forked(meet, rank, port, tmp_path) for rank in range(2)]
    for each in ranks:
        each.join(120)
    assert [each.exitcode for each in ranks] == [0, 0]
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert first == second
    assert first[:2] == [StopCause.none, StopCause.terminate]
    assert first[2].startswith("step 3, process 1: loss is nan; the optimiser step was not taken. row of process 1. ")


@pytest.mark.parametrize(
    ("choice", "causes"),
    [
        (Requeue.never, set[StopCause]()),
        (Requeue.out_of_time, {StopCause.notice, StopCause.time_limit}),
        (Requeue.any_stop, {StopCause.notice, StopCause.time_limit, StopCause.terminate}),
    ],
)
def test_a_job_is_queued_again_after_these_causes(choice: Requeue, causes: set[StopCause]) -> None:
    assert {cause for cause in StopCause if wants_requeue(choice, cause)} == causes


def batch_system(folder: Path, answer: str) -> dict[str, str]:
    """An environment with a job number, and an `scontrol` that notes what it is asked."""
    script = folder / "scontrol"
    script.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{answer}\n')
    script.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "4711"}


def when_training(run_dir: Path) -> Callable[[], bool]:
    metrics = run_dir / "metrics.jsonl"
    return lambda: metrics.is_file() and metrics.read_bytes().count(b"\n") >= 2


def test_a_requeued_job_goes_on_by_the_same_command(tmp_path: Path) -> None:
    """From the words on the command line to the exit status, with a real signal and a real `scontrol`."""
    run_dir, said = tmp_path / "run", tmp_path / "said"
    steps = "optimization.total_training_steps=30"
    words = (*small(()), *RUN, steps, "checkpoint.resume_from=latest", "run.requeue=out_of_time")
    start = Start(run_dir, words, as_command=True, environment=batch_system(tmp_path, "exit 0"), said=said)
    process = begin(start)
    assert wait_until(process, when_training(run_dir))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGUSR1)
    process.join(60)
    assert process.exitcode == 75, said.read_text()
    assert (tmp_path / "asked").read_text() == "requeue 4711\n"
    assert 0 < len(metric_lines(run_dir)) < 30
    assert finish(start) == 0, said.read_text()
    assert (tmp_path / "asked").read_text() == "requeue 4711\n"
    train(tmp_path / "whole", *RUN, steps)
    assert_same_run(tmp_path / "whole", run_dir)


def test_a_batch_system_that_refuses_costs_nothing_but_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in batch_system(tmp_path, "echo no such job >&2; exit 1").items():
        monkeypatch.setenv(name, value)
    settings = {"run.requeue": "any_stop", "checkpoint.resume_from": "latest"}
    config = configured(tmp_path / "run", *RUN, settings=settings)
    assert run_from_config(config, watchers=[Sends(1, signal.SIGTERM)]).stopped is StopCause.terminate
    assert (tmp_path / "asked").read_text() == "requeue 4711\n"
    assert "`scontrol requeue 4711` failed (no such job); submit the job again" in caplog.text
    monkeypatch.delenv("SLURM_JOB_ID")
    assert run_from_config(config, watchers=[Sends(2, signal.SIGTERM)]).stopped is StopCause.terminate
    assert "SLURM_JOB_ID is not set, so this is no SLURM job" in caplog.text
    assert (tmp_path / "asked").read_text() == "requeue 4711\n"


def test_a_job_whose_time_does_not_do_for_a_step_is_not_queued_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in batch_system(tmp_path, "exit 0").items():
        monkeypatch.setenv(name, value)
    settings = {"run.requeue": "out_of_time", "checkpoint.resume_from": "latest", "run.max_hours": 1e-6}
    config = configured(tmp_path / "run", *RUN, settings=settings)
    assert run_from_config(config).stopped is StopCause.time_limit
    assert "run.max_hours left no time for a single step" in caplog.text
    assert not (tmp_path / "asked").exists()


def test_a_sweep_ends_with_the_job_that_is_stopped(tmp_path: Path) -> None:
    """The jobs after it are not begun."""
    said = tmp_path / "said"
    words = (
        "-m",
        *small(()),
        *RUN,
        "optimization.total_training_steps=200",
        "seed=1,2",
        f"hydra.sweep.dir={tmp_path}/sweep",
    )
    process = begin(Start(tmp_path / "sweep", words, as_command=True, said=said))
    first = tmp_path / "sweep" / "0-seed=1"
    assert wait_until(process, when_training(first)), said.read_text()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 143, said.read_text()
    assert checkpoint_of(first)
    assert not (tmp_path / "sweep" / "1-seed=2").exists()


def test_an_interrupt_before_training_ends_the_command_in_one_line(tmp_path: Path) -> None:
    """Here while the user's own code is imported; the folder is free for another start."""
    grader = tmp_path / "own.py"
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n\n\ndef own(completions):\n    return [0.0] * len(completions)\n"
    grader.write_text(code)
    words = (*small(()), *RUN, "+reward.terms.own=1", f"+reward.functions.own={grader}:own")
    start = Start(tmp_path / "run", words, as_command=True, said=tmp_path / "said")
    assert finish(start) == 130
    said, log = (path.read_text() for path in (tmp_path / "said", tmp_path / "run" / "run.log"))
    assert said == "train.py: interrupted\n"
    assert "stopped: interrupted" in log
    assert "Traceback" not in said + log
    train(tmp_path / "run", *RUN)


def test_latest_needs_a_folder_that_is_the_same_each_time(capfd: pytest.CaptureFixture[str]) -> None:
    from maxent_grpo.commands.train import main

    before = sys.argv
    try:
        with pytest.raises(SystemExit) as stop:
            main(["checkpoint.resume_from=latest"])
    finally:
        sys.argv = before
    assert stop.value.code == 2
    assert "checkpoint.resume_from=latest goes on with the run in run.dir" in capfd.readouterr().err

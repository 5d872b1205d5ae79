"""Rollouts that a real server samples while the trainer trains."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.faulting_proxy import faulting
from support.runs import checkpoint_of, completion_lines, metric_lines, state_of, train
from support.same_run import assert_same_run
from support.vllm_policy import HAS_VLLM, JOINS, NEEDS_VLLM, server_processes
from support.vllm_runs import AHEAD, JOINED, LEARNING, joined, sampled

from maxent_grpo.errors import GenerationError
from maxent_grpo.training import loop
from maxent_grpo.training.generation.vllm.build import LaunchedServer

pytestmark = pytest.mark.skipif(not HAS_VLLM, reason=NEEDS_VLLM)

FOUR = (*JOINED, *AHEAD, "optimization.total_training_steps=4", "optimization.learning_rate=0.02")


@contextmanager
def around_steps(before: Callable[[int], object], after: Callable[[int], object] = lambda step: None) -> Iterator[None]:
    """Calls with the number of each optimiser step, before it trains and after."""
    train_step = loop.train_step

    def between(*arguments: Any, step: int, **named: Any) -> Any:
        before(step)
        report = train_step(*arguments, step=step, **named)
        after(step)
        return report

    with patch.object(loop, "train_step", between):
        yield


def test_a_rollout_is_sampled_while_the_one_before_trains(url: str, tmp_path: Path) -> None:
    """A step trains once the requests of the next rollout have arrived, and these are passed on once it is over."""
    arrived = {rollout: threading.Semaphore(0) for rollout in (1, 2, 3)}
    over = {rollout: threading.Event() for rollout in (1, 2, 3)}
    met: list[tuple[str, int, bool]] = []

    def hold(rollout: int) -> None:
        arrived[rollout].release()
        met.append(("a request outlasts the step", rollout, over[rollout].wait(30)))

    def before(step: int) -> None:  # step n trains rollout n - 1
        if step in arrived:
            came = all(arrived[step].acquire(timeout=30) for _ in range(4))
            met.append(("the requests are on their way", step, came))

    with faulting(url, lambda number: f"before:{number // 4}" if number >= 4 else None) as proxy:
        proxy.actions |= {str(rollout): partial(hold, rollout) for rollout in over}
        with around_steps(before, lambda step: over[step].set() if step in over else None):
            train(tmp_path / "run", *FOUR, joined(proxy))
        assert proxy.seen["samples"] == 4 * 4, "nothing is asked for that no step would train"
    assert all(is_so for *_, is_so in met), met
    assert Counter(what for what, *_ in met) == {"the requests are on their way": 3, "a request outlasts the step": 12}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        times = {name: value for name, value in line.items() if name.startswith("time/")}
        assert sum(times.values()) == pytest.approx(2 * times["time/step_seconds"], rel=1e-6)
        assert "throughput/sampled_tokens_per_second" not in line


def test_a_run_ahead_learns_from_older_weights_and_resumes_into_itself(url: str, tmp_path: Path) -> None:
    overrides = (*LEARNING, *AHEAD, "evaluation.every_n_steps=2", f"generation.vllm.url={url}")
    train(tmp_path / "run", *overrides)
    steps = [line for line in metric_lines(tmp_path / "run") if line["step"] > 0]
    assert [line["generation/staleness"] for line in steps] == [0, 1, 1, 1, 1, 1]
    assert [line["generation/weight_syncs"] for line in steps] == [1, 1, 1, 1, 1, 0]
    assert {line["generation/failed_requests"] for line in steps} == {0}
    made_by = {(line["step"], line["policy_version"]) for line in completion_lines(tmp_path / "run")}
    assert made_by == {(1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 4)}
    assert steps[0]["generation/logprob_gap"] < 1e-3
    moved = [line for line in steps[1:] if "mismatch/raw_max" in line]
    assert len(moved) >= 2
    assert all(line["mismatch/raw_min"] < 0.99 and line["mismatch/raw_max"] > 1.01 for line in moved)
    assert steps[-1]["reward/mean"] > steps[0]["reward/mean"] + 0.2
    half = checkpoint_of(tmp_path / "run", 3)
    assert state_of(half).states["rollout_ahead"]["rollout"]["version"] == 2
    train(tmp_path / "resumed", *overrides, resume_from=half)
    assert_same_run(tmp_path / "run", tmp_path / "resumed")


def test_requests_that_are_given_up_in_flight_stop_the_run_between_two_steps(url: str, tmp_path: Path) -> None:
    patient = ("generation.vllm.max_retries=1", "generation.vllm.timeout=20")
    with (
        faulting(url, lambda number: "500" if number >= 9 else None) as proxy,
        pytest.raises(
            GenerationError, match=r"vLLM did not deliver the completions of row .* The run is saved at step 2;"
        ),
    ):
        train(tmp_path / "run", *FOUR, *patient, joined(proxy))
    states = state_of(tmp_path / "run" / "checkpoints" / "step_2").states
    assert states["rollout_ahead"]["rollout"] is None
    assert states["data"]["offset"] == 8
    train(tmp_path / "later", *FOUR, *patient, f"generation.vllm.url={url}", resume_from=tmp_path / "run")
    assert [line["generation/staleness"] for line in metric_lines(tmp_path / "later")] == [0, 1, 0, 1]


@pytest.mark.slow
@pytest.mark.skipif(JOINS, reason="a server was started by somebody else, and this is about one of the run's own")
def test_a_server_killed_under_a_rollout_in_flight_is_started_anew_with_the_weights_of_that_rollout(
    url: str, tmp_path: Path
) -> None:
    urls: list[str] = []
    start = LaunchedServer.start

    def starting(server: LaunchedServer) -> str:
        urls.append(start(server))
        return urls[-1]

    def kill(step: int) -> None:
        if step == 2:  # the third rollout has just been sent for
            for process in server_processes(urls[0]):
                process.kill()

    with patch.object(LaunchedServer, "start", starting), around_steps(kill):
        train(tmp_path / "run", *FOUR, "generation.max_completion_len=60", "run.num_threads=1")
    assert len(set(urls)) == 2
    assert [line["generation/staleness"] for line in metric_lines(tmp_path / "run")] == [0, 1, 1, 1]
    assert sum(line["generation/failed_requests"] for line in metric_lines(tmp_path / "run")) >= 1
    train(tmp_path / "untroubled", *FOUR, "generation.max_completion_len=60", f"generation.vllm.url={url}")
    assert sampled(tmp_path / "run") == sampled(tmp_path / "untroubled")

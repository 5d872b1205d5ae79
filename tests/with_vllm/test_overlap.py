"""Rollouts that a real server samples while the trainer trains: how they go on, what they cost, and what becomes of them in trouble."""

from __future__ import annotations

import json
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from support.faulting_proxy import faulting
from support.runs import checkpoint_of, completion_lines, metric_lines, state_of, train
from support.same_run import assert_same_run
from support.vllm_policy import HAS_VLLM, JOINS, NEEDS_VLLM, server_processes
from support.vllm_runs import AHEAD, FOUR, LEARNING, around_steps, joined, sampled

from maxent_grpo.errors import GenerationError
from maxent_grpo.training.generation.vllm.build import LaunchedServer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_VLLM, reason=NEEDS_VLLM)]


LONG_STEPS = (
    *("generation.max_completion_len=30", "generation.num_generations=32", "generation.allowed_tokens=[]"),
    *("optimization.num_iterations=2", "optimization.total_training_steps=12", "generation.vllm.max_staleness=2"),
    *("scoring.batching.max_tokens=128", "scoring.batching.skip_zero_signal=false", "run.num_threads=1"),
)
"""Two steps of a rollout take about a second on one thread."""


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


def test_a_pipelined_rollout_costs_the_longer_of_sampling_and_training(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is held up for a second by every request, which costs the trainer nothing, as if it had processors of its own."""
    seconds: dict[int, float] = {}
    phases: dict[int, dict[str, float]] = {}
    for ahead in (0, 1):
        with faulting(url, lambda number: "before:wait") as proxy:
            proxy.actions["wait"] = lambda: time.sleep(1.0)
            train(tmp_path / str(ahead), *FOUR, *LONG_STEPS, f"generation.async_steps={ahead}", joined(proxy))
        lines = [json.loads(line) for line in (tmp_path / str(ahead) / "metrics.jsonl").read_text().splitlines()]
        settled = [line for line in lines if 4 < line["step"] <= 10]  # three rollouts of two steps
        phases[ahead] = {
            name: sum(line.get(f"time/{name}_seconds", 0.0) for line in settled) / 3
            for name in ("step", "rollout", "prepare", "old_policy", "policy", "backward")
        }
        seconds[ahead] = phases[ahead]["step"]
    with capsys.disabled():
        for ahead, times in phases.items():
            print(f"\nasync_steps={ahead}, seconds a rollout: " + ", ".join(f"{n} {s:.2f}" for n, s in times.items()))
    assert seconds[1] < 0.85 * seconds[0]

"""Whole runs with a real server: what they train, what they survive, and how they stop."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from support.faulting_proxy import faulting, refusing
from support.runs import checkpoint_of, completion_lines, configured, metric_lines, only_reward, state_of, train
from support.same_run import assert_same_run
from support.vllm_faults import JOINED, assert_groups_are_whole, joined
from support.vllm_policy import PROMPTS, Asked, assert_complete, policy, server_options, settings, token_lists

from maxent_grpo.errors import GenerationError
from maxent_grpo.training.generation.vllm.build import LaunchedServer
from maxent_grpo.training.generation.vllm.http import HttpEngine, Server
from maxent_grpo.training.types.generation import VLLMClientConfig

LEARNING = (
    *JOINED,
    *only_reward("starts_with_red"),
    "optimization.total_training_steps=6",
    "optimization.learning_rate=0.05",
    "generation.num_generations=16",
    "evaluation.enabled=true",
    "checkpoint.every_n_steps=3",
)


def test_a_run_learns_and_brings_its_weights_before_each_rollout(url: str, tmp_path: Path) -> None:
    train(tmp_path / "run", *LEARNING, f"generation.vllm.url={url}")
    lines = metric_lines(tmp_path / "run")
    steps = [line for line in lines if line["step"] > 0]
    assert [line["generation/weight_syncs"] for line in steps] == [1] * 6
    assert {line["generation/staleness"] for line in steps} == {0}
    assert {line["generation/failed_requests"] for line in steps} == {0}
    assert max(line["mismatch/logprob_gap"] for line in steps) < 1e-3
    rewards = [line["reward/mean"] for line in steps]
    assert rewards[-1] > rewards[0] + 0.2
    # the same seeds give the same completions, also from where a run was interrupted
    half = checkpoint_of(tmp_path / "run", 3)
    train(tmp_path / "resumed", *LEARNING, f"generation.vllm.url={url}", resume_from=half)
    assert_same_run(tmp_path / "run", tmp_path / "resumed")


FAULTS = {
    "status 500": ("500", 1),
    "garbage": ("garbage", 1),
    "half an answer": ("truncated", 1),
    "a broken connection": ("cut", 1),
}


@pytest.fixture(scope="module")
def untroubled(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same small run without any fault."""
    run_dir = tmp_path_factory.mktemp("untroubled") / "run"
    train(run_dir, *JOINED, f"generation.vllm.url={url}")
    return run_dir


def sampled(run_dir: Path) -> list[tuple[Any, ...]]:
    return [tuple(line[name] for name in ("step", "row_id", "completion")) for line in completion_lines(run_dir)]


@pytest.mark.parametrize(("fault", "failures"), FAULTS.values(), ids=FAULTS)
def test_a_spoilt_answer_is_asked_for_again(
    url: str, tmp_path: Path, untroubled: Path, fault: str, failures: int
) -> None:
    with faulting(url, lambda number: fault if number == 2 else None) as proxy:
        train(tmp_path / "run", *JOINED, joined(proxy))
        assert proxy.seen[fault] == 1
    assert_groups_are_whole(tmp_path / "run", steps=2)
    assert [line["generation/failed_requests"] for line in metric_lines(tmp_path / "run")] == [failures, 0]
    assert sampled(tmp_path / "run") == sampled(untroubled)


def test_too_few_completions_are_filled_up_by_asking_again(url: str, tmp_path: Path) -> None:
    with faulting(url, lambda number: "short" if number in (1, 4) else None) as proxy:
        train(tmp_path / "run", *JOINED, joined(proxy))
    lines = metric_lines(tmp_path / "run")
    assert_groups_are_whole(tmp_path / "run", steps=2)
    # the fifth request is the one for the completion that was missing, whose only one is left out as well
    assert [line["generation/partial_prompts"] for line in lines] == [1, 0]
    assert [line["generation/retry_rounds"] for line in lines] == [2, 0]


def test_a_completion_without_log_probabilities_has_the_ratio_1_and_is_counted(url: str, tmp_path: Path) -> None:
    corrected = ("scoring.behavior_logprobs_source=sampler", "scoring.mismatch.mode=token_truncate")
    with faulting(url, lambda number: "no_logprobs" if number == 0 else None) as proxy:
        train(tmp_path / "run", *JOINED, *corrected, joined(proxy))
    first, second = metric_lines(tmp_path / "run")
    [missing] = {line["num_tokens"] for line in completion_lines(tmp_path / "run")[:1]}
    assert first["mismatch/missing"] == missing
    assert "mismatch/missing" not in second
    assert first["mismatch/used_mean"] == pytest.approx(1, abs=1e-4)
    assert_groups_are_whole(tmp_path / "run", steps=2)


def test_a_server_that_lost_the_weights_is_given_them_again(
    url: str, tmp_path: Path, untroubled: Path, asked: Asked
) -> None:
    """In the middle of a rollout the server has other weights, really, and says so as one that started anew does."""
    other = policy(7)
    folder = tmp_path / "other"
    other.model.save_pretrained(folder)

    def lose() -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        for path, body in (("collective_rpc", reload), ("update_weight_version", {"new_version": "default"})):
            requests.post(f"{url}/{path}", json=body, timeout=60).raise_for_status()

    with faulting(url, lambda number: "before:lose" if number == 5 else None) as proxy:
        proxy.actions["lose"] = lose
        train(tmp_path / "run", *JOINED, joined(proxy))
        assert proxy.seen["before:lose"] == 1
    assert sum(line["generation/failed_requests"] for line in metric_lines(tmp_path / "run")) >= 1
    assert sampled(tmp_path / "run") == sampled(untroubled)


def test_weights_that_did_not_arrive_stop_the_run_with_both_numbers(url: str, tmp_path: Path) -> None:
    """A server whose reload does nothing, though it says that it did."""
    with faulting(url) as proxy:
        proxy.swallowed = {"/collective_rpc"}
        with pytest.raises(GenerationError, match=r"mean log-probability -\d+\.\d+ and the trainer -\d+\.\d+ .* computes with other") as caught:  # fmt: skip
            train(tmp_path / "run", *JOINED, "model.init_seed=5", joined(proxy))
    assert "step" not in str(caught.value).partition("version")[0]


def test_after_the_last_retry_the_run_is_saved_and_goes_on_later(url: str, tmp_path: Path, untroubled: Path) -> None:
    patient = ("generation.vllm.max_retries=1", "generation.vllm.timeout=20")
    with faulting(url, lambda number: "500" if number >= 4 else None) as proxy:
        with pytest.raises(GenerationError) as caught:
            train(tmp_path / "run", *JOINED, *patient, joined(proxy))
    folder = tmp_path / "run" / "checkpoints" / "step_1"
    assert str(caught.value).startswith("vLLM did not deliver the completions of row ")
    assert f"2 attempts failed, the last at {proxy.url}: status 500: something broke. See the server's log" in str(caught.value)
    assert str(caught.value).endswith(f"The run is saved at step 1; continue it with checkpoint.resume_from={folder}")
    assert state_of(folder).states["data"]["offset"] == 4
    train(tmp_path / "later", *JOINED, f"generation.vllm.url={url}", resume_from=folder)
    assert sampled(tmp_path / "later") == sampled(untroubled)


def test_what_does_not_come_is_sampled_here_when_that_is_asked_for(url: str, tmp_path: Path) -> None:
    filled = ("generation.vllm.backfill_local=true", "generation.vllm.rounds_cfg=2", "generation.vllm.max_retries=0")
    with faulting(url, lambda number: "short" if number < 6 else None) as proxy:
        train(tmp_path / "short", *JOINED, *filled, "generation.max_in_flight=1", joined(proxy))
    with faulting(url, lambda number: "500") as proxy:
        train(tmp_path / "down", *JOINED, *filled, "generation.max_in_flight=1", joined(proxy))
        assert proxy.seen["samples"] == 2  # one prompt of each rollout is tried, the others are not
    for name, counts in (("short", [2, 0]), ("down", [16, 16])):
        assert_groups_are_whole(tmp_path / name, steps=2)
        assert [line["generation/backfilled_completions"] for line in metric_lines(tmp_path / name)] == counts


def test_servers_share_the_work_and_no_more_is_sent_than_allowed(url: str, tmp_path: Path) -> None:
    bounded = (*JOINED, "optimization.prompts_per_step=12", "generation.max_in_flight=4")
    with faulting(url) as left, faulting(url) as right:
        train(tmp_path / "run", *bounded, joined(left, right))
        assert left.seen["samples"] + right.seen["samples"] == 24
        assert min(left.seen["samples"], right.seen["samples"]) >= 6
        assert left.most_in_flight + right.most_in_flight <= 4
        assert left.most_in_flight >= 2


def test_a_server_that_comes_back_is_waited_for(url: str, tmp_path: Path, untroubled: Path) -> None:
    """Nothing listens where the server was, for a while."""
    with refusing(url, after=2, seconds=1.0) as address:
        train(tmp_path / "run", *JOINED, "generation.vllm.max_retries=6", f"generation.vllm.url={address}")
    first, second = metric_lines(tmp_path / "run")
    assert first["generation/failed_requests"] >= 2
    assert second["generation/failed_requests"] == 0
    assert sampled(tmp_path / "run") == sampled(untroubled)


def test_an_adapter_is_merged_into_what_is_sent(url: str, tmp_path: Path) -> None:
    train(tmp_path / "run", *JOINED, "model.lora.enabled=true", "optimization.learning_rate=0.1", f"generation.vllm.url={url}")
    lines = metric_lines(tmp_path / "run")
    assert [line["generation/weight_syncs"] for line in lines] == [1, 1]
    assert max(line["mismatch/logprob_gap"] for line in lines) < 1e-3

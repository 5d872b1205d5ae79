"""A real vLLM server: it gives what is asked for under the distribution that scoring replays, and runs survive its faults."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from support.faulting_proxy import faulting, refusing
from support.runs import checkpoint_of, completion_lines, configured, metric_lines, state_of, train
from support.same_run import assert_same_run
from support.vllm_policy import (
    JOINS,
    PROMPTS,
    Asked,
    assert_complete,
    compare_greedy,
    distribution,
    moved,
    penalising,
    policy,
    server_processes,
    settings,
    token_lists,
)
from support.vllm_runs import FOUR, JOINED, LEARNING, around_steps, assert_groups_are_whole, joined, sampled

from maxent_grpo.errors import GenerationError
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.generation.vllm import transport
from maxent_grpo.training.generation.vllm.http import HttpEngine
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.generation import VLLMClientConfig

CONTROLS = {
    "nothing": {},
    "temperature and top-p": {"temperature": 0.7, "top_p": 0.9},
    "top-k": {"gen_top_k": 5},
    "min-p": {"gen_min_p": 0.1, "temperature": 1.3},
    "allowed tokens": {"allowed": (5, 6, 7, 8, 9), "temperature": 0.7},
}


@pytest.mark.parametrize("controls", CONTROLS.values(), ids=CONTROLS)
def test_log_probabilities_are_those_of_scoring(asked: Asked, controls: dict[str, Any]) -> None:
    chosen = settings(**controls)
    texts, records = asked.sampler(chosen)(list(PROMPTS), 8)
    assert_complete(texts, records, 8)
    vocabulary = asked.loaded.model.config.vocab_size
    replayed = distribution(chosen, vocabulary, asked.ends)
    gaps = torch.cat(
        [asked.gaps(p, r, replayed) for p, group in zip(PROMPTS, records, strict=True) for r in group if r]
    )
    assert gaps.numel() > 200
    assert float(gaps.mean()) < 1e-3
    assert float(gaps.max()) < 1e-2
    # without the controls they are others, so that the comparison can fail
    if controls:
        plain = distribution(settings(), vocabulary, asked.ends)
        other = [asked.gaps(p, r, plain) for p, group in zip(PROMPTS, records, strict=True) for r in group if r]
        assert float(torch.cat(other).mean()) > 1e-2


def test_penalties_are_those_of_the_local_sampler(asked: Asked) -> None:
    amounts = {"presence": 0.7, "frequency": 0.4, "repetition": 1.3}
    chosen = settings(0.8, **{f"gen_{name}_penalty": amount for name, amount in amounts.items()})
    _, records = asked.sampler(chosen)(list(PROMPTS), 4)
    replayed = distribution(chosen, asked.loaded.model.config.vocab_size, asked.ends)
    for prompt, group in zip(PROMPTS, records, strict=True):
        for record in group:
            assert record is not None
            change = penalising(asked, prompt, record.token_ids, **amounts)
            assert float(asked.gaps(prompt, record, replayed, change).max()) < 1e-2


def test_greedy_completions_are_those_of_the_local_sampler(asked: Asked) -> None:
    prompts = [RowPrompt(f"{n} or {n * n}?", f"row {n}") for n in range(20)]
    assert compare_greedy(asked, prompts, tie=1e-4) > 15


def test_a_stop_string_ends_a_completion_and_is_left_out(asked: Asked) -> None:
    chosen = settings(length=40, gen_stop_sequences=["e", "R"])
    texts, records = asked.sampler(chosen)(list(PROMPTS), 8)
    found = [
        (text, record.finish_reason, asked.loaded.tokenizer.decode(list(record.token_ids), skip_special_tokens=True))
        for part, group in zip(texts, records, strict=True)
        for text, record in zip(part, group, strict=True)
        if record is not None
    ]
    stopped = [(text, whole) for text, reason, whole in found if reason is FinishReason.stop]
    assert len(stopped) > 10
    assert all(whole in (text + "e", text + "R") for text, whole in stopped)
    assert not [text for text, reason, _ in found if "e" in text or "R" in text]


def test_a_bias_moves_a_token_and_a_guide_is_followed(asked: Asked) -> None:
    tokens = asked.loaded.tokenizer
    [letter] = tokens.encode("k", add_special_tokens=False)
    client = VLLMClientConfig(logit_bias={str(letter): 50.0})
    texts, _ = asked.sampler(settings(client=client, length=6))(list(PROMPTS), 2)
    assert {text for group in texts for text in group} == {"kkkkkk"}
    pattern = "(re|gre)[a-c]{2}"
    texts, _ = asked.sampler(settings(client=VLLMClientConfig(guided_regex=pattern), length=20))(list(PROMPTS), 4)
    assert all(re.fullmatch(pattern, text) for group in texts for text in group)
    assert len({text for group in texts for text in group}) > 5
    schema = json.dumps({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False})  # fmt: skip
    texts, records = asked.sampler(settings(client=VLLMClientConfig(guided_json=schema), length=60))(list(PROMPTS), 2)
    ended = [
        json.loads(text)
        for part, group in zip(texts, records, strict=True)
        for text, record in zip(part, group, strict=True)
        if record is not None and record.finish_reason is not FinishReason.length
    ]
    assert ended
    assert all(entry in ({"a": "x"}, {"a": "y"}) for entry in ended)


def test_the_same_seed_gives_the_same_completions_and_another_rollout_others(asked: Asked) -> None:
    first, second, other_seed = (asked.sampler(settings(), seed=seed)(list(PROMPTS), 4)[1] for seed in (3, 3, 4))
    other_rollout = asked.sampler(settings(), seed=3, rollout=1)(list(PROMPTS), 4)[1]
    assert token_lists(first) == token_lists(second)
    assert token_lists(first) != token_lists(other_seed)
    assert token_lists(first) != token_lists(other_rollout)
    one = asked.sampler(settings(), seed=3)
    # asked one after the other, a prompt's completions go on and do not come again
    again = one(list(PROMPTS), 4)[1], one(list(PROMPTS), 4)[1]
    assert token_lists(again[0]) == token_lists(first)
    assert all(a != b for a, b in zip(token_lists(again[0]), token_lists(again[1]), strict=True))


def test_counts_of_their_own_are_kept(asked: Asked) -> None:
    texts, records = asked.sampler(settings())(list(PROMPTS), 4, [0, 1, 2, 3, 4, 5])
    assert [len(group) for group in texts] == [len(group) for group in records] == [0, 1, 2, 3, 4, 5]


def test_a_run_learns_and_brings_its_weights_before_each_rollout(url: str, tmp_path: Path) -> None:
    train(tmp_path / "run", *LEARNING, f"generation.vllm.url={url}")
    lines = metric_lines(tmp_path / "run")
    steps = [line for line in lines if line["step"] > 0]
    assert [line["generation/weight_syncs"] for line in steps] == [1] * 6
    assert {line["generation/staleness"] for line in steps} == {0}
    assert {line["generation/failed_requests"] for line in steps} == {0}
    # steps whose groups have no signal are not scored
    gaps = [line["generation/logprob_gap"] for line in steps if "generation/logprob_gap" in line]
    assert len(gaps) >= 2
    assert max(gaps) < 1e-3
    rewards = [line["reward/mean"] for line in steps]
    assert rewards[-1] > rewards[0] + 0.2
    # the same seeds give the same completions, also from where a run was interrupted
    half = checkpoint_of(tmp_path / "run", 3)
    train(tmp_path / "resumed", *LEARNING, f"generation.vllm.url={url}", resume_from=half)
    assert_same_run(tmp_path / "run", tmp_path / "resumed")


def test_a_rollout_is_sampled_while_the_one_before_trains(url: str, tmp_path: Path) -> None:
    """A step trains once the requests of the next rollout have arrived, and these are passed on once it is over."""
    arrived = {rollout: threading.Semaphore(0) for rollout in (1, 2, 3)}
    over = {rollout: threading.Event() for rollout in arrived}
    met: list[tuple[str, bool]] = []

    def hold(rollout: int) -> None:
        arrived[rollout].release()
        met.append(("a request that lasts", over[rollout].wait(30)))

    def before(step: int) -> None:  # step n trains rollout n - 1
        if step in arrived:
            met.append(("requests on their way", all(arrived[step].acquire(timeout=30) for _ in range(4))))

    with faulting(url, lambda number: f"before:{number // 4}" if number >= 4 else None) as proxy:
        proxy.actions |= {str(rollout): partial(hold, rollout) for rollout in over}
        with around_steps(before, lambda step: over[step].set() if step in over else None):
            train(tmp_path / "run", *FOUR, joined(proxy))
        assert proxy.seen["samples"] == 4 * 4, "nothing is asked for that no step would train"
    assert Counter(met) == {("requests on their way", True): 3, ("a request that lasts", True): 12}


FAULTS = {
    "status 500": ("500", 1),
    "garbage": ("garbage", 1),
    "half an answer": ("truncated", 1),
    "a broken connection": ("cut", 1),
}


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
        train(tmp_path / "run", *JOINED, *corrected, "generation.max_in_flight=1", joined(proxy))
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

    # one request at a time: a real restart loses name and weights at once, and these two calls do not
    with faulting(url, lambda number: "before:lose" if number == 5 else None) as proxy:
        proxy.actions["lose"] = lose
        train(tmp_path / "run", *JOINED, "generation.max_in_flight=1", joined(proxy))
        assert proxy.seen["before:lose"] == 1
    assert sum(line["generation/failed_requests"] for line in metric_lines(tmp_path / "run")) >= 1
    assert sampled(tmp_path / "run") == sampled(untroubled)


def test_weights_that_did_not_arrive_stop_the_run_with_both_numbers(url: str, tmp_path: Path) -> None:
    """A server whose reload does nothing, though it says that it did."""
    with faulting(url) as proxy:
        proxy.swallowed = {"/collective_rpc"}
        with pytest.raises(GenerationError, match=r"mean log-probability -\d+\.\d+ and the trainer -\d+\.\d+ .* computes with other"):  # fmt: skip
            train(tmp_path / "run", *JOINED, "model.init_seed=5", joined(proxy))


def test_after_the_last_retry_the_run_is_saved_and_goes_on_later(url: str, tmp_path: Path, untroubled: Path) -> None:
    patient = ("generation.vllm.max_retries=1", "generation.vllm.timeout=20")
    with (
        faulting(url, lambda number: "500" if number >= 4 else None) as proxy,
        pytest.raises(GenerationError) as caught,
    ):
        train(tmp_path / "run", *JOINED, *patient, joined(proxy))
    folder = tmp_path / "run" / "checkpoints" / "step_1"
    assert str(caught.value).startswith("vLLM did not deliver the completions of row ")
    assert f"2 attempts failed, the last at {proxy.url}: status 500: something broke. See the server's log" in str(
        caught.value
    )
    assert str(caught.value).endswith(f"The run is saved at step 1; continue it with checkpoint.resume_from={folder}")
    assert state_of(folder).states["data"]["offset"] == 4
    train(tmp_path / "later", *JOINED, f"generation.vllm.url={url}", resume_from=folder)
    assert sampled(tmp_path / "later") == sampled(untroubled)


def test_what_does_not_come_is_sampled_here_when_that_is_asked_for(url: str, tmp_path: Path) -> None:
    filled = ("generation.vllm.backfill_local=true", "generation.vllm.rounds_cfg=2", "generation.vllm.max_retries=0")
    with faulting(url, lambda number: "short" if number < 12 else None) as proxy:
        train(tmp_path / "short", *JOINED, *filled, "generation.max_in_flight=1", joined(proxy))
    with faulting(url, lambda number: "500") as proxy:
        train(tmp_path / "down", *JOINED, *filled, "generation.max_in_flight=1", joined(proxy))
        assert proxy.seen["samples"] == 2  # one prompt of each rollout is tried, the others are not
    for name, counts in (("short", [4, 0]), ("down", [16, 16])):
        assert_groups_are_whole(tmp_path / name, steps=2)
        assert [line["generation/backfilled_completions"] for line in metric_lines(tmp_path / name)] == counts
    assert [line["generation/retry_rounds"] for line in metric_lines(tmp_path / "short")] == [2, 0]


def test_servers_share_the_work_and_no_more_is_sent_than_allowed(url: str, tmp_path: Path) -> None:
    bounded = (*JOINED, "optimization.prompts_per_step=12", "generation.max_in_flight=4")
    with faulting(url) as left, faulting(url) as right:
        train(tmp_path / "run", *bounded, joined(left, right))
        assert left.seen["samples"] + right.seen["samples"] == 24
        assert min(left.seen["samples"], right.seen["samples"]) >= 6
        assert left.most_in_flight + right.most_in_flight <= 4
        assert left.most_in_flight + right.most_in_flight >= 2


def test_a_server_that_comes_back_is_waited_for(url: str, tmp_path: Path, untroubled: Path) -> None:
    """Nothing listens where the server was, for a while."""
    with refusing(url, after=2, seconds=1.0) as address:
        train(tmp_path / "run", *JOINED, "generation.vllm.max_retries=6", f"generation.vllm.url={address}")
    first, second = metric_lines(tmp_path / "run")
    assert first["generation/failed_requests"] >= 2
    assert second["generation/failed_requests"] == 0
    assert sampled(tmp_path / "run") == sampled(untroubled)


def test_a_server_that_hangs_is_given_up_in_time_and_asked_again(url: str, tmp_path: Path, untroubled: Path) -> None:
    """Every process of the server stands still for three seconds."""

    def stop() -> None:
        processes = server_processes(url)
        for process in processes:
            process.suspend()
        threading.Timer(3.0, lambda: [process.resume() for process in processes]).start()

    short = ("generation.vllm.timeout=1.5", "generation.vllm.max_retries=6", "generation.vllm.backoff=0.3")
    with faulting(url, lambda number: "before:stop" if number == 2 else None) as proxy:
        proxy.actions["stop"] = stop
        train(tmp_path / "run", *JOINED, *short, joined(proxy))
    assert metric_lines(tmp_path / "run")[0]["generation/failed_requests"] >= 1
    assert sampled(tmp_path / "run") == sampled(untroubled)


def test_an_adapter_is_merged_into_what_is_sent(url: str, tmp_path: Path) -> None:
    train(
        tmp_path / "run",
        *JOINED,
        "model.lora.enabled=true",
        "optimization.learning_rate=0.1",
        f"generation.vllm.url={url}",
    )
    lines = metric_lines(tmp_path / "run")
    assert [line["generation/weight_syncs"] for line in lines] == [1, 1]
    assert max(line["generation/logprob_gap"] for line in lines) < 1e-3


def test_weights_are_brought_as_often_as_asked(url: str, tmp_path: Path) -> None:
    older = (
        "scoring.behavior_logprobs_source=sampler",
        "generation.vllm.max_staleness=1",
        f"generation.vllm.url={url}",
    )
    for change, syncs in (("sync_interval=2", [1, 0]), ("sync_weights=false", [0, 0])):
        train(tmp_path / change, *JOINED, *older, f"generation.vllm.{change}")
        lines = metric_lines(tmp_path / change)
        assert [line["generation/weight_syncs"] for line in lines] == syncs
        assert [line["generation/staleness"] for line in lines] == [0, 1]
    made_by = {line["policy_version"] for line in completion_lines(tmp_path / "sync_interval=2")}
    assert made_by == {0}
    # what configuration cannot foresee, such as a smaller last rollout, is refused where it would happen
    config = configured(tmp_path / "late", *JOINED, *older, "generation.vllm.sync_interval=2")
    config.generation.vllm.max_staleness = 0
    with pytest.raises(GenerationError, match=r"rollout 1 would be sampled by the weights of step 0, 1 steps ago"):
        run_from_config(config)


def test_what_a_request_says_of_itself(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, Any]] = []
    post = transport.post

    def listening(*args: Any, **kwargs: Any) -> requests.Response:
        response = post(*args, **kwargs)
        answers.append(response.json())
        return response

    monkeypatch.setattr(transport, "post", listening)
    engine = asked.weights.engine
    assert isinstance(engine, HttpEngine)
    monkeypatch.setattr(engine, "_client", VLLMClientConfig(request_id_prefix="mine-"))
    sampler = asked.sampler(settings(client=VLLMClientConfig(request_logprobs=False)))
    answers.clear()  # those of bringing the weights
    _, records = sampler(list(PROMPTS), 2)
    assert {record.behaviour_logp for group in records for record in group if record} == {None}
    ids = [answer["id"] for answer in answers if "choices" in answer]
    assert len(ids) == len(PROMPTS)
    assert all("mine-" in name for name in ids)


@pytest.mark.skipif(JOINS, reason="the server was started by somebody else, who would have to start it again")
@pytest.mark.slow
def test_a_server_of_ours_that_is_killed_is_started_anew_with_the_weights(asked: Asked) -> None:
    """Killed in the middle of a rollout, which ends with the completions that it would have had."""
    moved(asked.loaded, 3)
    asked.weights.bring(1)
    chosen = settings(length=60, allowed=(5, 6, 7, 8), top_p=0.9)
    before = token_lists(asked.sampler(chosen, seed=8)(list(PROMPTS), 8)[1])
    engine, stats = asked.weights.engine, asked.weights.settings.generation_stats
    assert isinstance(engine, HttpEngine)
    [old], failed = engine.place.urls, stats["failed_requests"]
    [leader] = [process for process in server_processes(old) if "api_server" in " ".join(process.cmdline())]
    killer = threading.Timer(0.3, leader.kill)
    again = asked.sampler(chosen, seed=8)
    killer.start()
    texts, records = again(list(PROMPTS), 8)
    assert stats["failed_requests"] > failed
    assert engine.place.urls != [old]
    assert_complete(texts, records, 8)
    assert token_lists(records) == before
    assert server_processes(old) == []
    assert "vLLM: starting a server anew" in " ".join(asked.notes)

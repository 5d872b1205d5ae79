"""The parts of `generation=vllm` that need no vLLM: settings, requests, answers, pauses, processes and folders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support.ranks import free_port
from support.settings import changed
from support.tiny import tiny_llama, tiny_tokenizer

from maxent_grpo.config.generation import VllmGenerationConfig, WeightTransfer
from maxent_grpo.config.resolve import engine_share
from maxent_grpo.errors import GenerationError
from maxent_grpo.tasks.rows import RowPrompt
from maxent_grpo.training.generation import rollout
from maxent_grpo.training.generation.rollout import collect_rollout
from maxent_grpo.training.generation.vllm import guard, transport
from maxent_grpo.training.generation.vllm.ask import Ask, BadAnswerError, ask_seed, read_answers, sampling_parameters
from maxent_grpo.training.generation.vllm.http import HttpEngine, Server
from maxent_grpo.training.generation.vllm.server_process import (
    ServerOptions,
    ServerProcess,
    last_words,
    server_command,
    server_environment,
)
from maxent_grpo.training.generation.vllm.waiters import Waiters
from maxent_grpo.training.generation.vllm.weights import (
    PROBE_TOKENS,
    Snapshots,
    check_probe,
    own_prompt_logp,
    probe_tokens,
    snapshot_root,
)
from maxent_grpo.training.settings import generation_settings
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.generation import VLLMClientConfig

ASK = Ask("row", [4, 5], 2, {"n": 2}, frozenset({2}))


def choice(index: int, tokens: list[int], reason: str = "length", **changes: Any) -> dict[str, Any]:
    logp = {"token_logprobs": [-0.5] * len(tokens)}
    return {"index": index, "token_ids": tokens, "finish_reason": reason, "logprobs": logp, **changes}


def test_controls_of_the_client_count_where_there_are_none() -> None:
    config = VllmGenerationConfig()
    client = config.vllm
    client.frequency_penalty, client.presence_penalty, client.top_k, client.stop_sequences = 0.5, 1.5, 7, ["x"]
    client.rounds_cfg, config.max_retry_rounds = 3, 9
    config.allowed_tokens = []
    settings = generation_settings(config, None, None)
    sent = sampling_parameters(settings, 2, 1, {9, 3})
    assert (sent["frequency_penalty"], sent["presence_penalty"], sent["top_k"], sent["stop"]) == (0.5, 1.5, 7, ["x"])
    # scoring replays what is sampled from
    assert (settings.gen_top_k, settings.max_retry_rounds) == (7, 3)
    config.penalty.gen_frequency_penalty, config.penalty.gen_presence_penalty = 0.0, 0.25
    config.penalty.gen_top_k, config.penalty.gen_stop_sequences = 4, ["y"]
    sent = sampling_parameters(generation_settings(config, None, None), 2, 1, {9, 3})
    assert (sent["frequency_penalty"], sent["presence_penalty"], sent["top_k"], sent["stop"]) == (0.0, 0.25, 4, ["y"])
    assert (sent["stop_token_ids"], sent["ignore_eos"], sent["n"], sent["seed"]) == ([3, 9], True, 2, 1)


def test_seeds_are_functions_of_names() -> None:
    names = [(0, "train", 0, "row", 0), (1, "train", 0, "row", 0), (0, "eval", 0, "row", 0), (0, "train", 1, "row", 0),
             (0, "train", 0, "row2", 0), (0, "train", 0, "row", 4)]  # fmt: skip
    seeds = [ask_seed(*name) for name in names]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [ask_seed(*name) for name in names]
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_answers_are_read_in_order_and_ends_told_by_the_last_token() -> None:
    answers = read_answers({"choices": [choice(1, [7, 2], "stop"), choice(0, [7, 8])]}, ASK)
    assert [answer.token_ids for answer in answers] == [[7, 8], [7, 2]]
    assert [answer.finish_reason for answer in answers] == [FinishReason.length, FinishReason.eos]
    [known] = read_answers({"choices": [choice(0, [7, 8], logprobs={"token_logprobs": [-1.0, float("-inf")]})]}, ASK)
    assert known.logp == [-1.0, None]
    [unknown] = read_answers({"choices": [choice(0, [7, 8], logprobs=None)]}, ASK)
    assert unknown.logp is None


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ([], "no list of choices"),
        ({"choices": [3]}, "a choice is not an object"),
        ({"choices": [choice(2, [7])]}, "the index 2 of 2"),
        ({"choices": [choice(0, [7]), choice(0, [8])]}, "the index 0 of 2"),
        ({"choices": [choice(0, [])]}, "no token ids"),
        ({"choices": [choice(0, [7], token_ids=["a"])]}, "no token ids"),
        ({"choices": [choice(0, [7], prompt_token_ids=[4])]}, "another prompt"),
        ({"choices": [choice(0, [7, 8], logprobs={"token_logprobs": [-1.0]})]}, "no log-probability for each"),
        ({"choices": [choice(0, [7], logprobs={"token_logprobs": ["a"]})]}, "is not a number"),
        ({"choices": [choice(0, [7], "abort")]}, "ended for the reason 'abort'"),
    ],
)
def test_an_answer_that_is_none_is_thrown_away(body: object, complaint: str) -> None:
    with pytest.raises(BadAnswerError, match=complaint):
        read_answers(body, ASK)


def nobody() -> Server:
    """The address of a port on which nothing listens."""
    return Server(f"http://127.0.0.1:{free_port()}", "policy")


@pytest.mark.parametrize(("retries", "backoff", "multiplier", "pauses"), [(2, 0.05, 3.0, 0.2), (3, 0.05, 1.0, 0.15), (0, 9.0, 2.0, 0.0)])  # fmt: skip
def test_a_request_that_fails_is_sent_again_after_growing_pauses(
    retries: int, backoff: float, multiplier: float, pauses: float
) -> None:
    client = VLLMClientConfig(max_retries=retries, backoff=backoff, backoff_multiplier=multiplier)
    stats, server = {"failed_requests": 0}, nobody()
    engine = HttpEngine([server], client, stats, carrier=None, run="r", max_in_flight=2)
    started = time.monotonic()
    with pytest.raises(GenerationError) as caught:
        engine.complete([ASK], 0)
    assert pauses <= time.monotonic() - started < pauses + 2
    engine.close()
    assert stats["failed_requests"] == retries + 1
    assert str(caught.value) == (
        f"vLLM did not deliver the completions of row 'row': {retries + 1} attempts failed, the last at {server.url}: no "
        "connection, or it broke off. See the server's log; generation.vllm.max_retries and generation.vllm.timeout set how "
        "long it is tried"
    )


def test_requests_are_sent_without_waiting_and_weights_wait_for_them() -> None:
    over: list[bool] = []

    class Loading:
        """A way for weights that notes what is in flight when it is taken."""

        def prepare(self, version: int) -> None:
            over.extend(future.done() for future in sent)

        def carry(self, url: str, post: object) -> None:
            raise AssertionError("nobody listens")

        def close(self) -> None:
            over.append(True)

    client = VLLMClientConfig(max_retries=2, backoff=0.1, backoff_multiplier=1.0)
    engine = HttpEngine([nobody()], client, {"failed_requests": 0}, carrier=Loading(), run="r", max_in_flight=2)
    started = time.monotonic()
    sent = engine.begin([ASK, ASK], 0)
    assert time.monotonic() - started < 0.1
    with pytest.raises(GenerationError, match="did not deliver new weights: 3 attempts failed"):
        engine.load(1)
    assert over == [True, True]
    with pytest.raises(GenerationError, match="3 attempts failed"):
        sent[0].result()
    engine.close()
    assert over == [True] * 3


def test_a_way_of_weights_that_fails_for_good_is_told_though_its_server_is_gone_too() -> None:
    class Nods(BaseHTTPRequestHandler):
        """A server that takes whatever it is told."""

        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    listening = HTTPServer(("127.0.0.1", 0), Nods)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    taken: list[str] = []

    class Broken:
        """A way that ends together with the server."""

        def prepare(self, version: int) -> None: ...

        def carry(self, url: str, post: object) -> None:
            taken.append(url)
            listening.shutdown()
            listening.server_close()
            raise GenerationError("the broadcast cannot be taken back")

        def close(self) -> None: ...

    server = Server(f"http://127.0.0.1:{listening.server_port}", "policy")
    client = VLLMClientConfig(max_retries=2, backoff=0.0)
    engine = HttpEngine([server], client, {"failed_requests": 0}, carrier=Broken(), run="r", max_in_flight=2)
    with pytest.raises(GenerationError, match=r"^the broadcast cannot be taken back$"):
        engine.load(1)
    assert taken == [server.url]
    engine.close()


def test_a_reason_is_given_for_an_error_without_words() -> None:
    assert transport.reason(AssertionError()) == "AssertionError"


HELD_UP = """
import socket, sys
from maxent_grpo.training.generation.vllm.ask import Ask
from maxent_grpo.training.generation.vllm.http import HttpEngine, Server
from maxent_grpo.training.types.generation import VLLMClientConfig

silent = socket.create_server(("127.0.0.1", 0))
server = Server(f"http://127.0.0.1:{silent.getsockname()[1]}", "policy")
engine = HttpEngine([server], VLLMClientConfig(timeout=60), {}, carrier=None, run="r", max_in_flight=4)
engine.begin([Ask("row", [4, 5], 2, {}, frozenset())] * 8, 0)
silent.accept()  # the first request is on its way
engine.close()
"""


@pytest.mark.slow
def test_a_run_that_is_over_is_not_held_up_by_a_server_that_does_not_answer() -> None:
    subprocess.run([sys.executable, "-c", HELD_UP], check=True, timeout=50)


def test_waiters_run_so_many_at_a_time_and_cancel_what_has_not_begun() -> None:
    waiters, go, running = Waiters(2), threading.Event(), threading.Semaphore(0)

    def call() -> int:
        running.release()
        assert go.wait(20)
        return 3

    futures = [waiters.submit(call) for _ in range(3)]
    assert all(running.acquire(timeout=20) for _ in range(2))
    assert not running.acquire(timeout=0.1), "the third waits for its turn"
    waiters.close()
    go.set()
    assert [future.result(20) for future in futures[:2]] == [3, 3]
    assert until(lambda: futures[2].cancelled())
    assert waiters.submit(call).cancelled()
    failing = Waiters(1)
    with pytest.raises(ZeroDivisionError):
        failing.submit(lambda: 1 // 0).result(20)
    assert failing.submit(lambda: 4).result(20) == 4, "the thread is still there"
    failing.close()


def test_a_retry_round_waits_first(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(rollout.time, "sleep", waited.append)
    config = VllmGenerationConfig(num_generations=3, allowed_tokens=[])
    config.vllm.retry_sleep = 0.25
    rows = [{"row_id": "a", "prompt": RowPrompt("?", "a"), "answer": ""}]
    settings = generation_settings(config, None, None)
    batch = collect_rollout(rows, lambda prompts, num, counts=None: ([["one"] for _ in prompts], None), settings)
    assert [len(group) for group in batch.grouped_completions] == [3]
    assert waited == [0.25, 0.25]
    settings.use_vllm = False
    collect_rollout(rows, lambda prompts, num, counts=None: ([["one"] for _ in prompts], None), settings)
    assert waited == [0.25, 0.25]


def test_the_engine_settings_are_those_of_the_command_line() -> None:
    plain = server_command(Path("w"), 1, ServerOptions("float32", 64, 0, 1.0))
    options = ServerOptions(
        "bfloat16", 9000, 3, 1.0, kv_cache_gib=2, gpu_memory_utilization=0.4, tensor_parallel_size=2, enforce_eager=True,
        extra_args=("--enable-prefix-caching",),
    )  # fmt: skip
    command = " ".join(server_command(Path("w"), 1, options))
    for said in (
        *("--dtype bfloat16", "--max-model-len 9000", "--seed 3", "--gpu-memory-utilization 0.4"),
        *("--tensor-parallel-size 2", "--enforce-eager", "--enable-prefix-caching", "--max-num-batched-tokens 9000"),
        *("--logprobs-mode processed_logprobs", "--generation-config vllm", "--no-enable-chunked-prefill"),
    ):
        assert said in command
    assert server_environment(options)["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert "--weight-transfer-config" not in plain
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in server_environment(options)
    for way in (WeightTransfer.nccl, WeightTransfer.ipc):
        chosen = replace(options, transfer=way)
        command = server_command(Path("w"), 1, chosen)
        assert json.loads(command[command.index("--weight-transfer-config") + 1]) == {"backend": way.value}
        is_ipc = way is WeightTransfer.ipc
        assert ("VLLM_ALLOW_INSECURE_SERIALIZATION" in server_environment(chosen)) == is_ipc
    assert not {"--gpu-memory-utilization", "--enforce-eager", "--no-enable-chunked-prefill"} & set(plain)


def test_float32_is_computed_in_full_unless_somebody_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)
    assert server_environment(ServerOptions("float32", 64, 0, 1.0))["TRITON_F32_DEFAULT"] == "ieee"
    assert "TRITON_F32_DEFAULT" not in server_environment(ServerOptions("bfloat16", 64, 0, 1.0))
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32x3")
    assert server_environment(ServerOptions("float32", 64, 0, 1.0))["TRITON_F32_DEFAULT"] == "tf32x3"


@pytest.mark.parametrize(
    ("overrides", "share"),
    [
        ((), 0.4),
        (("generation.vllm_mode=colocate",), 0.4),
        (("generation.vllm_mode=colocate", "generation.engine.sleep=true"), 0.6),
        (("generation.engine.devices=[1]",), 0.92),
        (("generation.engine.gpu_memory_utilization=0.3", "generation.engine.devices=[1]"), 0.3),
    ],
)
def test_an_engine_leaves_a_trainer_on_its_gpu_most_of_it(overrides: tuple[str, ...], share: float) -> None:
    generation = changed("generation=vllm", *overrides).generation
    assert isinstance(generation, VllmGenerationConfig)
    assert engine_share(generation) == share


def test_the_reason_of_a_server_that_ended_is_the_line_that_names_it(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    cause = (
        "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory utilization"
    )
    lines = [f"(EngineCore pid=7) {cause}", "RuntimeError: Engine core initialization failed. See root cause above."]
    log.write_text("\n".join([*lines, "done"]))
    assert last_words(log) == f"(EngineCore pid=7) {cause}"
    log.write_text("nothing to say\n\n")
    assert last_words(log) == "nothing to say"


def test_a_server_takes_the_gpus_it_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ServerOptions("float32", 64, 0, 1.0, devices=(1, 2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert server_environment(options)["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert "CUDA_VISIBLE_DEVICES" not in server_environment(replace(options, devices=()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-a,7")
    assert server_environment(options)["CUDA_VISIBLE_DEVICES"] == "GPU-a,7"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    with pytest.raises(GenerationError, match=r"devices=\[1, 2\]: CUDA_VISIBLE_DEVICES=5,7 leaves the run 2 GPUs"):
        server_environment(options)


def test_a_server_that_does_not_start_is_given_up_in_time(tmp_path: Path) -> None:
    """Without vLLM it ends at once, with it half a second is too short."""
    server = ServerProcess(tmp_path, ServerOptions("float32", 64, 0, 0.5, kv_cache_gib=1), tmp_path / "server.log")
    with pytest.raises(GenerationError, match=r"ended while starting: .*; see .*server\.log|was not ready after \d+ s"):
        server.wait_until_ready(lambda message: None)
    assert not server.is_running


def test_snapshots_lie_where_asked_and_go_with_their_owner(tmp_path: Path) -> None:
    model = tiny_llama(torch.float32)
    there = [snapshot_root(tmp_path, str(tmp_path / "there")) for _ in range(2)]
    assert there[0] != there[1]
    assert {root.parent for root in there} == {tmp_path / "there"}
    neighbour = tmp_path / "there" / "version_7"
    neighbour.mkdir()
    snapshots = Snapshots(there[0], model, tiny_tokenizer())
    folders = [snapshots.write(version) for version in (0, 1, 2)]
    assert [folder.is_dir() for folder in folders] == [False, True, True]
    assert {path.name for path in folders[-1].iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert snapshots.any() == folders[-1]
    snapshots.remove()
    assert not there[0].exists()
    assert neighbour.is_dir()
    assert there[1].is_dir()


def test_the_probe_is_a_sequence_that_the_policy_finds_likely() -> None:
    model = tiny_llama(torch.float32)
    tokens = probe_tokens(model)
    assert len(tokens) == PROBE_TOKENS
    with torch.no_grad():
        best = torch.log_softmax(model(torch.tensor([tokens])).logits[0, :-1], dim=-1).max(dim=-1).values
    assert own_prompt_logp(model, tokens) == pytest.approx(best.tolist(), abs=1e-5)
    assert probe_tokens(model) == tokens


def test_other_weights_are_told_by_a_probe() -> None:
    assert check_probe([-1.0, -2.0], [-1.0, -2.0005], 3, "there", torch.float32) == pytest.approx(0.00025)
    with pytest.raises(GenerationError, match=r"version 3, there gives a probe of 3 tokens the mean log-probability -1\.600000 and the trainer -1\.500000"):  # fmt: skip
        check_probe([-1.0, -2.0], [-1.0, -2.2], 3, "there", torch.float32)
    with pytest.raises(GenerationError):
        check_probe([-1.0], [float("nan")], 3, "there", torch.float32)


OWNER = """
import subprocess, sys, time
command = [sys.executable, "-c", "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)', '{mark}']); time.sleep(99)", "{mark}"]
server = subprocess.Popen([sys.executable, "{guard}", *command], stdin=subprocess.PIPE, start_new_session=True)
folder = subprocess.Popen([sys.executable, "{guard}", "--remove", "{folder}"], stdin=subprocess.PIPE, start_new_session=True)
print("ready", flush=True)
time.sleep(99)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_is_guarded_goes_with_its_owner_however_that_ends(tmp_path: Path, number: signal.Signals) -> None:
    """A process with a child of its own stands for the server and its workers, and a folder for the weights."""
    mark, folder = f"mark-{os.getpid()}-{number.name}", tmp_path / "folder"
    folder.mkdir()
    code = OWNER.format(mark=mark, guard=guard.__file__, folder=folder)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert until(lambda: len(marked(mark)) >= 2)
        owner.send_signal(number)
        owner.wait(10)
    assert until(lambda: not marked(mark) and not folder.exists())


def marked(mark: str) -> list[psutil.Process]:
    """The processes that carry the mark, the owner and the guard aside, whose command lines hold it too."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if command and command[-1] == mark and guard.__file__ not in command:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def until(is_so: Any, seconds: float = 20.0) -> bool:
    ends = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True

"""A vLLM server of our own: started on loopback with the policy's weights, watched, and always taken down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from maxent_grpo.config.generation import WeightTransfer
from maxent_grpo.errors import GenerationError
from maxent_grpo.training.generation.vllm import guard, transport

HOST = "127.0.0.1"
POLICY_NAME = "policy"
"""What the served model is called."""
PREFILL_TOKENS = 8192
VISIBLE = "CUDA_VISIBLE_DEVICES"
POINTERS = ("See root cause", "See stack trace")
"""In lines of vLLM's log that name no fault and point to another line."""
TELL_SECONDS = 10.0
POLL_SECONDS = 0.5
CLOSE_SECONDS = 2 * guard.GRACE_SECONDS + 5


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server is started."""

    dtype: str
    max_model_len: int
    """Longest prompt with its completion [tokens]."""
    seed: int
    startup_seconds: float
    kv_cache_gib: int | None = None
    """Memory for keys and values on a CPU [GiB]."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory that the server takes."""
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    extra_args: tuple[str, ...] = ()
    threads: int | None = None
    transfer: WeightTransfer = WeightTransfer.reload
    """How the server will take weights."""
    devices: tuple[int, ...] = ()
    """Numbers of the GPUs that the server takes, among those that this process may see; empty leaves it all of them."""

    @property
    def on_cpu(self) -> bool:
        """Whether the engine computes on a CPU. A prompt is then never run in parts: vLLM 0.32 steps a seeded request's generator
        back after each part, which generators of the CPU cannot do, and its engine dies of it."""
        return self.kv_cache_gib is not None

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens run at a time where prompts are not cut."""
        return max(PREFILL_TOKENS, self.max_model_len)


def engine_arguments(options: ServerOptions) -> dict[str, Any]:
    """How an engine is made, under vLLM's own names; nothing else decides how completions are sampled."""
    arguments: dict[str, Any] = {
        "dtype": options.dtype,
        "max_model_len": options.max_model_len,
        "seed": options.seed,
        # of the distribution that is sampled, with temperature and truncation
        "logprobs_mode": "processed_logprobs",
        # the folder's recommended temperature and top-k are not ours
        "generation_config": "vllm",
        "tensor_parallel_size": options.tensor_parallel_size,
    }
    if options.on_cpu:
        arguments |= {"enable_chunked_prefill": False, "max_num_batched_tokens": options.prefill_tokens}
    if options.enforce_eager:
        arguments["enforce_eager"] = True
    if options.gpu_memory_utilization is not None:
        arguments["gpu_memory_utilization"] = options.gpu_memory_utilization
    return arguments


def server_command(model: Path, port: int, options: ServerOptions) -> list[str]:
    """The command line of a server."""
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(model), "--served-model-name", POLICY_NAME, "--host", HOST, "--port", str(port),
    ]  # fmt: skip
    for name, value in engine_arguments(options).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            command += [f"--{flag}", str(value)]
    if options.transfer is not WeightTransfer.reload:
        command += ["--weight-transfer-config", json.dumps({"backend": options.transfer.value})]
    return [*command, *options.extra_args]


def server_environment(options: ServerOptions) -> dict[str, str]:
    """The environment of a server: ours, with the routes for weights opened and the hub closed.

    Raises:
        GenerationError: a GPU is named that this process may not see.
    """
    environment = dict(os.environ) | {
        "VLLM_SERVER_DEV_MODE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    environment |= computing_environment(options, environment)
    if options.threads is not None:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    if options.transfer is WeightTransfer.ipc:
        environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # handles of memory come as a pickle, from us
    if options.devices:
        environment[VISIBLE] = _visible(options.devices, os.environ.get(VISIBLE))
    return environment


def computing_environment(options: ServerOptions, given: Mapping[str, str]) -> dict[str, str]:
    """Variables that decide what an engine computes with, wherever it runs; what is ``given`` stays."""
    chosen: dict[str, str] = {}
    if options.kv_cache_gib is not None:
        chosen["VLLM_CPU_KVCACHE_SPACE"] = str(options.kv_cache_gib)
    if options.dtype == "float32":
        # Triton's products of float32 keep 10 bits of the mantissa otherwise, and log-probabilities are off by more than rounding
        chosen["TRITON_F32_DEFAULT"] = given.get("TRITON_F32_DEFAULT", "ieee")
    return chosen


def _visible(devices: tuple[int, ...], seen: str | None) -> str:
    """The names of GPUs that are numbered among those of ``seen``; None is all that there are."""
    if seen is None:
        return ",".join(str(device) for device in devices)
    names = seen.split(",")
    if max(devices) >= len(names):
        raise GenerationError(
            f"generation.engine.devices={list(devices)}: {VISIBLE}={seen} leaves the run {len(names)} GPUs; use numbers below"
        )
    return ",".join(names[device] for device in devices)


class ServerProcess:
    """One server. ``url`` is where it listens once it is ready."""

    def __init__(self, model: Path, options: ServerOptions, log: Path) -> None:
        self._options, self._log = options, log
        self.port = transport.free_port(HOST)
        self.url = f"http://{HOST}:{self.port}"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, guard.__file__, *server_command(model, self.port, options)],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=server_environment(options),
                start_new_session=True,  # the terminal's signals are for the trainer, which ends the server when it is ready
            )

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    @property
    def is_healthy(self) -> bool:
        """Whether the server answers."""
        return is_healthy(self.url)

    def wait_until_ready(self, tell: Callable[[str], None]) -> None:
        """Wait until the server answers; ``tell`` hears every few seconds how long it has been and what the server says.

        Raises:
            GenerationError: it ended, or was not ready in time; the server is gone then.
        """
        started = told = time.monotonic()
        while True:
            waited = time.monotonic() - started
            if not self.is_running:
                self.close()
                raise GenerationError(f"the vLLM server ended while starting: {last_words(self._log)}; see {self._log}")
            if waited > self._options.startup_seconds:
                self.close()
                raise GenerationError(
                    f"the vLLM server was not ready after {waited:.0f} s: see {self._log}, or raise "
                    "generation.engine.startup_seconds"
                )
            if self.is_healthy:
                tell(f"vLLM: the server answers after {waited:.0f} s")
                return
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                tell(f"vLLM: waiting for the server, {waited:.0f} of at most {self._options.startup_seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """End the server and everything it started."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def is_healthy(url: str) -> bool:
    """Whether a server answers there."""
    try:
        return transport.get(f"{url}/health", timeout=5).ok
    except requests.RequestException:
        return False


def last_words(log: Path) -> str:
    """The last line of a server's log that names a fault, or where none does its last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not any(pointer in line for pointer in POINTERS)]
    return (errors or lines or ["it wrote nothing"])[-1]

"""Several processes of one test that meet as those of a run do: each calls the same function, and each answer comes back."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from accelerate import Accelerator

TESTS = Path(__file__).resolve().parents[1]


def joined(rank: str, world: str, port: str) -> Accelerator:
    """This process's place among ``world`` processes that meet at a port of this machine."""
    os.environ |= place_environment(int(rank), int(world), int(port))
    return Accelerator(cpu=True)


def place_environment(rank: int, world: int, port: int) -> dict[str, str]:
    """What a launcher tells a process of its place."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def call_together(target: str, *arguments: Any, size: int = 2, timeout: float = 180.0) -> list[Any]:
    """What ``module:function`` returns in each of ``size`` processes, in rank order.

    Arguments and answers travel as JSON. A process that fails fails the test with what it wrote, and the others are ended.
    """
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        answers = [Path(folder) / f"{rank}.json" for rank in range(size)]
        logs = [Path(folder) / f"{rank}.log" for rank in range(size)]
        processes: list[subprocess.Popen[bytes]] = []
        for rank in range(size):
            command = [sys.executable, "-W", "ignore", "-m", "support.ranks", target, json.dumps(arguments)]
            with logs[rank].open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [*command, str(answers[rank])],
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env={**environment, **place_environment(rank, size, port)},
                    )
                )
        try:
            statuses = [process.wait(timeout) for process in processes]
        except subprocess.TimeoutExpired:
            statuses = [process.poll() for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(statuses):
            wrote = "\n".join(f"process {rank} ({statuses[rank]}):\n{logs[rank].read_text()}" for rank in range(size))
            raise AssertionError(f"{target} in {size} processes: {wrote}")
        return [json.loads(answer.read_text()) for answer in answers]


def main(target: str, arguments: str, answer: str) -> None:
    module, _, name = target.partition(":")
    result = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])

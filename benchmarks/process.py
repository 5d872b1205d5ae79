"""What a process has cost so far: CPU seconds and memory, its children included in the seconds."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil

from maxent_grpo.telemetry.resident import peak_resident_bytes

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def one_thread(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a process that computes with one thread, says little and asks no hub."""
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    return environment | dict.fromkeys(THREAD_VARIABLES, "1") | quiet | {"OMP_WAIT_POLICY": "PASSIVE"}


def cpu_seconds() -> float:
    """Processor time of this process and of the processes it started, those that ended included [s]."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            spent = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system
    return total


def resident_bytes() -> int:
    """Memory that this process has resident now [bytes]."""
    return psutil.Process(os.getpid()).memory_info().rss


class Lap:
    """Splits the process's time into laps; the first is what warms up and is dropped by whoever reads them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.base = 0
        self.peak = 0
        self._last = 0.0

    def start(self) -> None:
        """Everything is imported and loaded: what comes is measured."""
        self.base, self._last = resident_bytes(), cpu_seconds()

    def stop(self) -> None:
        """A lap ended, and the next begins."""
        now = cpu_seconds()
        self.seconds.append(now - self._last)
        self.peak = peak_resident_bytes()
        self._last = cpu_seconds()

    def as_sample(self, work: list[float] | None = None, **facts: Any) -> dict[str, Any]:
        """The laps as a measurement's process reports them.

        Args:
            work: what each lap did, such as tokens, which its seconds are divided by; None is 1.
            facts: further numbers and words, by name.
        """
        return {
            "seconds": self.seconds,
            "work": work or [1.0] * len(self.seconds),
            "base": self.base,
            "peak": self.peak,
            **facts,
        }


def timed(laps: int, body: Callable[[], float | None]) -> tuple[Lap, list[float]]:
    """Run ``body`` so often; it returns the work that it did, or None for 1."""
    lap, work = Lap(), []
    lap.start()
    for _ in range(laps):
        done = body()
        lap.stop()
        work.append(1.0 if done is None else float(done))
    return lap, work


def matmul_rate(rows: int, inner: int, columns: int, *, seconds: float = 0.4) -> float:
    """Multiply-adds of a float32 matrix product of that shape, two operations each [operations/s of CPU time]."""
    import torch

    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    once = 2.0 * rows * inner * columns
    repeats = max(1, int(2e8 / once))
    found: list[float] = []
    until = time.process_time() + seconds
    while time.process_time() < until or not found:
        started = time.process_time()
        for _ in range(repeats):
            torch.mm(left, right)
        found.append(once * repeats / max(time.process_time() - started, 1e-9))
    return statistics.median(found)

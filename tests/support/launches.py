"""Runs of several processes, started as a user does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.ranks import TESTS, free_port
from support.runs import metric_lines

REPOSITORY = TESTS.parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2")
DEADLINE = 600.0
"""For a launch that ends well: long, since the machine may be busy [seconds]."""


@dataclass(frozen=True)
class Ended:
    """What came of a launch."""

    status: int
    out: str
    err: str
    seconds: float


def accelerate_launch() -> tuple[str, ...]:
    """`accelerate launch`, which starts several processes without a GPU as well if it is told that there are several."""
    return (
        *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
        *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
        *("--main_process_port", str(free_port())),
    )


class Launch:
    """A launcher and its processes, in a session of their own."""

    def __init__(
        self,
        launcher: tuple[str, ...],
        arguments: list[str],
        folder: Path,
        script: Path = REPOSITORY / "train.py",
        more: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        environment = {
            **os.environ,
            "PYTHONPATH": f"{TESTS}{os.pathsep}{REPOSITORY}",
            "OMP_NUM_THREADS": "1",
            **(more or {}),
        }
        self.began = time.monotonic()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*launcher, str(script), *arguments], stdout=out, stderr=err, env=environment, cwd=folder,
                start_new_session=True,
            )  # fmt: skip

    def wait(self, within: float) -> Ended:
        """Wait for the launcher's end, which must come within so many seconds."""
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise AssertionError(f"still going on after {within} s:\n{self.said()}") from error
        return Ended(
            self.process.returncode, self._out.read_text(), self._err.read_text(), time.monotonic() - self.began
        )

    def said(self) -> str:
        """What all processes have printed so far."""
        return self._out.read_text() + self._err.read_text()

    def kill(self) -> None:
        """End the launcher and what it has started."""
        for pid in (*self.workers(), self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def workers(self) -> list[int]:
        """Process numbers of the run's processes, in rank order."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ranks = {_rank(int(pid)): int(pid) for pid in found}
        return [ranks[rank] for rank in sorted(ranks) if rank >= 0]


def wait_for(condition: Callable[[], bool], within: float = DEADLINE) -> None:
    """Wait until it holds; fails after so many seconds."""
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def after_two_steps(launch: Launch, run_dir: Path) -> None:
    """Wait until the run is under way."""

    def is_under_way() -> bool:
        assert launch.process.poll() is None, launch.said()
        return (run_dir / "metrics.jsonl").is_file() and len(metric_lines(run_dir)) >= 2

    wait_for(is_under_way)


def _rank(pid: int) -> int:
    """The rank in a process's environment, -1 for one that has none or has ended."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except ProcessLookupError:
        return -1
    for entry in entries:
        if entry.startswith(b"RANK="):
            return int(entry.removeprefix(b"RANK="))
    return -1

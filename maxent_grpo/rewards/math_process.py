"""Asking the process that reads expressions: started when first needed, shared, limited in time and memory, replaced when it dies.

Only plain JSON passes between the two, one line each way.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from maxent_grpo.errors import RewardError

SCRIPT = Path(__file__).with_name("math_worker.py")
CPU_SECONDS = 1.0
"""Time that one answer may take [seconds of CPU], so that a busy machine changes no verdict."""
WALL_SECONDS = 60.0
"""Time after which a process that says nothing is given up [seconds]."""
START_SECONDS = 300.0
MEMORY = 1 << 29
"""Address space of the process [bytes]."""
MAX_REMEMBERED = 20_000
"""Most verdicts kept, so that the completions of a group that say the same are read once."""
DIED_OF = {-signal.SIGPROF: "timeout", 3: "memory", -signal.SIGABRT: "memory"}
ENVIRONMENT = (
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "HOME",
    "LANG",
    "VIRTUAL_ENV",
)
"""Variables that the process inherits; no other, whatever secrets they hold."""


class Verdict(NamedTuple):
    """What the process says of an expression.

    ``status``: ``read``, ``unread`` (not mathematics), ``right_unread`` (the expression it is compared with is not),
    ``failed`` (the library raised), ``timeout``, ``memory``, or ``crashed`` (it died twice of the same expression).
    """

    status: str
    same: bool = False
    key: str = ""
    seconds: float = 0.0
    """CPU time that it took."""


class MathProcess:
    """One process and the pipes to it. Usable from any thread; a forked child of the program starts its own."""

    def __init__(
        self, cpu_seconds: float = CPU_SECONDS, memory: int = MEMORY, wall_seconds: float = WALL_SECONDS
    ) -> None:
        self._cpu_seconds, self._memory, self._wall_seconds = cpu_seconds, memory, wall_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._number = 0
        self._remembered: dict[tuple[str | None, str], Verdict] = {}

    @property
    def pid(self) -> int | None:
        """The process's number; None while there is none."""
        return self._process.pid if self._process else None

    def ask(self, right: str | None, text: str) -> Verdict:
        """Read ``text`` and compare it with ``right``, unless that is None.

        Raises:
            RewardError: the process cannot be started.
        """
        with self._lock:
            known = self._remembered.get((right, text))
            if known is not None:
                return known
            verdict = self._asked(right, text)
            if verdict.status != "crashed":
                if len(self._remembered) >= MAX_REMEMBERED:
                    self._remembered.clear()
                self._remembered[right, text] = verdict
                if verdict.status == "read":
                    self._remembered[None, text] = verdict._replace(same=False)
            return verdict

    def close(self) -> None:
        """End the process, and with it whatever it is doing."""
        # a call that was given up may still hold the lock; the program's end does not wait for it
        held = self._lock.acquire(timeout=1.0)
        try:
            self._end()
        finally:
            if held:
                self._lock.release()

    def forget(self) -> None:
        """Let go of a process that belongs to the program this one was forked from, without ending it."""
        self._lock = threading.Lock()
        process, self._process, self._unread = self._process, None, b""
        if process is not None:
            _close_pipes(process)
            process.returncode = 0  # it is no child of ours to wait for

    def _asked(self, right: str | None, text: str) -> Verdict:
        for _ in range(2):  # a process that was killed from outside costs one more try
            process = self._process or self._start()
            self._number += 1
            request = json.dumps({"id": self._number, "right": right, "text": text}).encode()
            try:
                os.write(
                    _descriptor(process.stdin), b"\n" + request + b"\n"
                )  # the first ends what a killed reader left
            except BrokenPipeError:
                self._end()
                continue
            reply = self._reply(process, self._number)
            if reply is None:
                self._end()
            elif "died" not in reply:
                return Verdict(str(reply["status"]), bool(reply["same"]), str(reply["key"]), float(reply["seconds"]))
            elif reply["died"] in DIED_OF:
                return Verdict(DIED_OF[reply["died"]])
            elif reply["died"] == "silent":
                self._end()
                return Verdict("timeout")
        return Verdict("crashed")

    def _reply(self, process: subprocess.Popen[bytes], number: int) -> Mapping[str, Any] | None:
        """The reply to request ``number``, or the news that the child that had it died; None when the process is gone."""
        deadline = time.monotonic() + self._wall_seconds
        while True:
            line = self._line(process, deadline)
            if not line:
                return None if line is None else {"died": "silent"}
            reply = json.loads(line)
            if "died" in reply or reply.get("id") == number:
                return reply

    def _line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
        """The next line; empty when none comes before the deadline, None when none will ever come."""
        descriptor = _descriptor(process.stdout)
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not waiting.poll(1000 * left):
                return b""
            piece = os.read(descriptor, 65536)
            if not piece:
                return None
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _start(self) -> subprocess.Popen[bytes]:
        self._unread = b""
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        process = subprocess.Popen(
            [sys.executable, "-P", "-B", str(SCRIPT), str(self._cpu_seconds), str(self._memory)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # an interrupt from the keyboard is for the program; a group of its own can be ended whole
        )
        self._process = process
        line = self._line(process, time.monotonic() + START_SECONDS)
        greeting: dict[str, Any] = json.loads(line) if line else {}
        if "ready" not in greeting:
            self._end()
            raise RewardError(
                f"the math grader's process did not start ({greeting.get('failed', 'it said nothing')}): "
                "see that math-verify is installed for this Python: pip install -e ."
            )
        return process

    def _end(self) -> None:
        process, self._process, self._unread = self._process, None, b""
        if process is None:
            return
        _close_pipes(process)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _descriptor(pipe: Any) -> int:
    return int(pipe.fileno())


SHARED = MathProcess()
"""The process that grades for this program."""
atexit.register(SHARED.close)
os.register_at_fork(after_in_child=SHARED.forget)

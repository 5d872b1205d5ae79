"""The threads that tell the processes of a run of each other's end.

A collective that a process is missing from does not come back, with NCCL for minutes, and then says nothing of the cause. So the
first process that fails leaves word in the store through which all have met, before it ends; a thread looks there every second. It
also counts up in the store, and looks whether the next process does: one that was killed leaves no word, but counts no further.
Another thread ends the process where that is stuck. It asks nobody: where the network is gone, a question to the store is not
answered, and does not come back either.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from maxent_grpo.config.complain import complain
from maxent_grpo.config.installed import program
from maxent_grpo.errors import MaxentGrpoError, PeerError, exit_status
from maxent_grpo.launched import Place

INTERVAL = 1.0
"""How often a process counts and looks [seconds]."""
SILENCE = 120.0
"""A process that counts no further, or a store that does not answer for so long has ended; a call that lets no other thread run may
take a while [seconds]."""
SILENCE_OF_SUSPECTS = 6.0
"""The same once a collective broke or the launcher has sent SIGTERM, as it does when a process ends [seconds]."""
FREEDOM = 5.0
"""How long a process may take to come to its own end after another one failed, before it is taken to be stuck [seconds]."""
ANSWER = 10.0
"""How long the store may take to answer [seconds]."""
CLOSING = 10.0
"""How long closing the record of a stuck process may take [seconds]."""
_BROKEN = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
"""Words in the errors of collectives that another process has left."""


@dataclass(frozen=True)
class Failure:
    """What ended a run of several processes."""

    rank: int
    """The process that failed."""
    text: str
    status: int
    """Exit status of every process."""
    found_by: int
    """The process that says so to the user: the one that failed, or, where that was killed, the one that found it gone."""


class PeerWatch(threading.Thread):
    """Knows of failures, has another thread look for them, and ends this process if it is stuck then."""

    def __init__(self, here: Place, meeting: int) -> None:
        super().__init__(name="peers", daemon=True)
        self.here = here
        # a connection of its own: one serves a single call at a time, and those of collectives wait
        store: Any = _get_default_store()
        self.store = PrefixStore(f"peers/{meeting}", store.clone())
        self.store.set_timeout(timedelta(seconds=ANSWER))
        self.close: Callable[[BaseException], None] | None = None
        """What is done in place of the main thread before a stuck process is ended."""
        self.failure: Failure | None = None
        self.signals, self._woken = socket.socketpair()
        self.signals.setblocking(False)
        self._is_over = threading.Event()
        self._is_ending = False
        """Whether the main thread has come to an end by itself."""
        self._is_suspicious = False
        self._failed_at = self._told_at = 0.0
        self._next_count, self._next_since = b"", time.monotonic()
        self._answered_at = time.monotonic()

    def hold_term(self, _number: int, _frame: FrameType | None) -> None:
        """What SIGTERM does outside of training: nothing yet; the thread finds out whether it is for another process's end."""

    def stop(self) -> None:
        """The run is over for this process."""
        self._is_over.set()
        with suppress(OSError):
            self.signals.send(b"\0")

    def close_signals(self) -> None:
        """Close the sockets by which signals reach the thread, which was stopped and looks no more."""
        self.join(INTERVAL)
        self.signals.close()
        self._woken.close()

    def run(self) -> None:
        """Until the run is over."""
        threading.Thread(target=self._keep_looking, name="peers: store", daemon=True).start()
        while True:
            ready, _, _ = select.select([self._woken], [], [], INTERVAL)
            # the byte is there as soon as the signal is, also while the main thread waits where no Python runs
            if ready and signal.SIGTERM in self._woken.recv(64):
                self._is_suspicious = True
                if signal.getsignal(signal.SIGTERM) == self.hold_term:
                    self._told_at = self._told_at or time.monotonic()
            if self._is_over.is_set():
                return
            if self.failure is None and time.monotonic() - self._answered_at > self._patience:
                self._take(Failure(0, "it cannot be reached any more, or its launcher cannot", 1, self.here.rank))
            self._end_if_stuck()

    def cause(self, error: BaseException) -> BaseException:
        """What the run ends with: the error, or that another process failed first, which brought it about."""
        if isinstance(error, PeerError):
            return error
        self._is_ending = True
        if _may_follow(error):
            self._is_suspicious = True
            until = time.monotonic() + SILENCE_OF_SUSPECTS + 3 * INTERVAL
            while self.failure is None and time.monotonic() < until:
                time.sleep(0.05)
        first = self._leave_word(Failure(self.here.rank, _text(error), _status(error), self.here.rank))
        return error if first.rank == self.here.rank else self._error(first)

    def linger(self) -> None:
        """Let the others look, where the store ends with this process; a launcher's outlives it."""
        if self.here.is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            time.sleep(2 * INTERVAL)

    @property
    def _patience(self) -> float:
        return SILENCE_OF_SUSPECTS if self._is_suspicious else SILENCE

    def _keep_looking(self) -> None:
        unanswered = 0
        for number in count(1):
            if self._is_over.wait(INTERVAL):
                return
            try:
                self._look(number)
                unanswered, self._answered_at = 0, time.monotonic()
            except RuntimeError:
                unanswered += 1
                if unanswered == 3 and self.failure is None:
                    self._take(Failure(0, "it has ended without a word, or its launcher has", 1, self.here.rank))

    def _look(self, number: int) -> None:
        self.store.set(f"count/{self.here.rank}", str(number))
        if self.failure is None and self.store.check(["failure"]):
            self._take(Failure(**json.loads(self.store.get("failure"))))
        following = (self.here.rank + 1) % self.here.size
        now, found = time.monotonic(), b""
        if self.store.check([f"count/{following}"]):
            found = self.store.get(f"count/{following}")
        if found != self._next_count:
            self._next_count, self._next_since = found, now
        elif self.failure is None and now - self._next_since > self._patience:
            self._leave_word(
                Failure(following, "it has ended without a word, as one does that is killed", 1, self.here.rank)
            )

    def _leave_word(self, failure: Failure) -> Failure:
        """What all end with: this failure, unless there is word of another."""
        if self.failure is None:
            saying = threading.Thread(target=self._say, args=(failure,), daemon=True)
            saying.start()
            saying.join(ANSWER)
        if self.failure is None:  # nobody can be told any more
            self._take(failure)
        assert self.failure is not None
        return self.failure

    def _say(self, failure: Failure) -> None:
        with suppress(RuntimeError):
            first = self.store.compare_set("failure", "", json.dumps(asdict(failure)))
            self._take(Failure(**json.loads(first)))

    def _take(self, failure: Failure) -> None:
        self.failure, self._failed_at = failure, time.monotonic()

    def _error(self, failure: Failure) -> PeerError:
        name = Place(failure.rank, self.here.size, 0).name
        return PeerError(f"{name}: {failure.text}", failure.status, is_said=failure.found_by != self.here.rank)

    def _end_if_stuck(self) -> None:
        now = time.monotonic()
        if self._is_ending:
            return
        if self.failure is not None and now - self._failed_at > FREEDOM:
            self._end(self._error(self.failure))
        elif self.failure is None and self._told_at and now - self._told_at > SILENCE_OF_SUSPECTS + 2 * INTERVAL:
            self._end(PeerError("SIGTERM before the first step, or after the last", 128 + signal.SIGTERM))

    def _end(self, error: PeerError) -> None:
        """End the process in place of its main thread."""
        if not error.is_said:
            complain(program(), error)
        if self.close is not None:
            # the main thread may hold what closing waits for
            closing = threading.Thread(target=self.close, args=(error,), daemon=True)
            closing.start()
            closing.join(CLOSING)
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(error.status)


def _may_follow(error: BaseException) -> bool:
    """Whether an error looks like that of a collective which another process has left."""
    if isinstance(error, MaxentGrpoError) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _BROKEN)


def _text(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, MaxentGrpoError) else f"{type(error).__name__}: {error}"


def _status(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return exit_status(error)

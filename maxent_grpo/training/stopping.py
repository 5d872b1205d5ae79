"""Stopping a run before its end: signals and the wall clock, turned into one decision between two optimiser steps.

All processes of a run stop after the same step: what each has seen is one number, and the largest of them is the decision.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from types import FrameType

from accelerate import Accelerator

from maxent_grpo.distributed import gather_all
from maxent_grpo.launched import place


class StopCause(IntEnum):
    """Why a run stops before its end; where processes saw different things, the largest counts."""

    none = 0
    time_limit = 1
    """`run.max_hours` would be over before another step is done."""
    notice = 2
    """SIGUSR1: a batch system says that the time is nearly over."""
    terminate = 3
    """SIGTERM."""
    interrupt = 4
    """SIGINT, as of Ctrl-C."""


NOT_FINISHED = 75
"""Exit status of a run that ran out of time: `EX_TEMPFAIL`, come again."""
EXIT_STATUS = {
    StopCause.time_limit: NOT_FINISHED,
    StopCause.notice: NOT_FINISHED,
    StopCause.terminate: 128 + signal.SIGTERM,
    StopCause.interrupt: 128 + signal.SIGINT,
}
"""What the command line ends with after a stop."""
SAID = {
    StopCause.time_limit: "run.max_hours is nearly over",
    StopCause.notice: "SIGUSR1",
    StopCause.terminate: "SIGTERM",
    StopCause.interrupt: "SIGINT",
}
"""The cause in words."""
SIGNALS = {
    signal.SIGUSR1: StopCause.notice,
    signal.SIGTERM: StopCause.terminate,
    signal.SIGINT: StopCause.interrupt,
}
RESERVE = 2.0
"""The run stops when less is left of its time than this many of its longest turns, one of which saves and evaluates [turns]."""
LEAST_RESERVE = 0.01
"""The least that is kept back: a checkpoint may be the first one, and the record is closed after it [share of the time]."""
_SHOW_CURSOR = b"\x1b[?25h"


@dataclass
class Stopping:
    """What this process has seen of reasons to stop.

    ``max_seconds`` counts from ``started``, a time of ``clock``. A turn is everything from one optimiser step to the next.
    """

    max_seconds: float | None = None
    clock: Callable[[], float] = time.monotonic
    started: float | None = None
    seen: StopCause = StopCause.none
    """The gravest signal so far."""
    longest_turn: float = 0.0
    """Seconds."""
    _turn_began: float | None = None
    _received: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        if self.started is None:
            self.started = self.clock()

    @classmethod
    def within(cls, hours: float | None, started: float | None = None) -> Stopping:
        """With so many hours from ``started``, a time of ``time.monotonic``, by default now; None for any number."""
        return cls(None if hours is None else 3600.0 * hours, started=started)

    def turn(self) -> None:
        """A turn begins, and the one before is over."""
        now = self.clock()
        if self._turn_began is not None:
            self.longest_turn = max(self.longest_turn, now - self._turn_began)
        self._turn_began = now

    def decide(self, accelerator: Accelerator) -> StopCause:
        """Whether to stop here, before another step; the same answer on every process, all of which must ask."""
        return StopCause(max(gather_all(accelerator, int(self._here()))))

    def _here(self) -> StopCause:
        if self.seen is not StopCause.none or self.max_seconds is None or self.started is None:
            return self.seen
        left = self.max_seconds - (self.clock() - self.started)
        kept_back = max(RESERVE * self.longest_turn, LEAST_RESERVE * self.max_seconds)
        return StopCause.time_limit if left < kept_back else StopCause.none

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take signals as a wish to stop, within the block; one that the process was started to ignore stays ignored.

        Only the main thread of a program can: elsewhere signals do what they did.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in former.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._receive)
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        cause = SIGNALS[signal.Signals(number)]
        if number in self._received and cause is not StopCause.notice:
            if sys.stdout.isatty():
                os.write(1, _SHOW_CURSOR)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._received.add(number)
        self.seen = max(self.seen, cause)
        # what was interrupted may be in the middle of printing: neither print nor logging may be called here
        again = "" if cause is StopCause.notice else ", a second one ends it at once"
        if place().is_main:
            os.write(2, f"{SAID[cause]}: the run stops after this step and saves{again}\n".encode())

"""Wall-clock time of the phases of a step: every moment belongs to exactly one phase, or to none, which is called other.

A line of metrics covers the time from the line before it: what happens after a line is written (writing it, the checkpoint)
stands on the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch

T = TypeVar("T")


class PhaseClock:
    """Adds up the seconds spent in named phases until drained. Inside another phase, time counts for the inner one alone.

    One thread's: what others do at the same time belongs to the phase that waits for it, or to none.

    Attributes:
        labels: whether phases are marked in a profile that is being taken.
    """

    def __init__(
        self, settle: Callable[[], object] | None = None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        """Start with no time spent.

        Args:
            settle: waits for work that was only queued, at both ends of a phase; None where nothing is queued.
            now: the time [s].
        """
        self.labels = False
        self._settle, self._now = settle, now
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = self._last = now()
        self._processor_since = time.process_time()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the enclosed block under ``name``."""
        self._claim()
        self._open.append(name)
        try:
            with torch.profiler.record_function(name) if self.labels else nullcontext():
                yield
        finally:
            self._claim()
            self._open.pop()

    def waiting(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """The items, the time that making each takes counted under ``name``."""
        source = iter(items)
        while True:
            with self.phase(name):
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item

    def drain(self) -> tuple[dict[str, float], float]:
        """Seconds of each phase and in all since the last drain, and start anew."""
        self._claim()
        phases, total = self._seconds, self._last - self._since
        self._seconds, self._since = {}, self._last
        return phases, total

    def restart(self) -> None:
        """Forget what was spent until now."""
        self.drain()
        self.drain_processor()

    def drain_processor(self) -> float:
        """CPU time of all threads of this process since the last call [s], however many others share its cores."""
        now = time.process_time()
        spent, self._processor_since = now - self._processor_since, now
        return spent

    def _claim(self) -> None:
        """Give the time since the last call to the phase that it was spent in."""
        if self._settle is not None:
            self._settle()
        now = self._now()
        if self._open:
            name = self._open[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

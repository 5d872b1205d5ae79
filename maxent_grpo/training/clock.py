"""Wall-clock time of the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseClock:
    """Adds up the seconds spent in named phases until drained; phases do not nest."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the enclosed block under ``name``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def drain(self) -> tuple[dict[str, float], float]:
        """Seconds of each phase and in all since the last drain, and start anew."""
        now = time.perf_counter()
        phases, total = self._seconds, now - self._since
        self._seconds, self._since = {}, now
        return phases, total

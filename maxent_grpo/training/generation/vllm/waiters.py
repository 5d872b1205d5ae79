"""Threads that do nothing but wait for servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Waiters:
    """Runs at most ``most`` calls at a time, each in a thread, in the order in which they come.

    Unlike those of ``concurrent.futures`` the threads end with the process, whatever they wait for: a run that is over is not
    held up by a server that does not answer.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = self._num_pending = 0
        self._is_closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """What the call will give."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                future.cancel()
                return future
            self._num_pending += 1
            grows = self._num_threads < min(self._most, self._num_pending)
            self._num_threads += grows
            self._calls.put((future, call))
        if grows:
            threading.Thread(target=self._work, daemon=True, name=f"vllm_{self._num_threads}").start()
        return future

    def close(self) -> None:
        """Cancel what has not begun, and let the threads end."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._num_threads):
                self._calls.put(None)

    def _work(self) -> None:
        while (taken := self._calls.get()) is not None:
            future, call = taken
            if self._is_closed:
                future.cancel()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # whoever waits for the result is told
                    future.set_exception(error)
            with self._lock:
                self._num_pending -= 1

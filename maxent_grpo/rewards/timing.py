"""Calls that may take too long: each is given up after its limit, and the caller goes on.

A thread cannot be stopped from outside. One that is given up is left to itself, and counted; what it returns later is lost.
Code that never lets other threads run, such as a search of ``re`` that backtracks, cannot be given up this way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any


class CallTimedOut(Exception):
    """A call took longer than its limit."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call returned, or what it raised."""

    value: Any = None
    error: BaseException | None = None


def attempt(call: Callable[[], Any]) -> Outcome:
    """The outcome of a call made here and now; a keyboard interrupt passes through."""
    try:
        return Outcome(call())
    except (
        Exception,
        SystemExit,
        GeneratorExit,
    ) as error:  # a reward function is the user's code and may raise anything
        return Outcome(error=error)


def attempt_within(call: Callable[[], Any], seconds: float, abandoned: list[threading.Thread]) -> Outcome:
    """The outcome of a call made in a thread, ``CallTimedOut`` after ``seconds``; a thread given up joins ``abandoned``."""
    outcomes: list[Outcome] = []

    def target() -> None:
        try:
            outcomes.append(Outcome(call()))
        except BaseException as error:  # the thread hands over whatever ended it
            outcomes.append(Outcome(error=error))

    thread = threading.Thread(target=target, name="reward function", daemon=True)
    thread.start()
    thread.join(seconds)
    if outcomes:
        return outcomes[0]
    abandoned.append(thread)
    return Outcome(error=CallTimedOut())


class BackgroundLoop:
    """An event loop in a thread of its own, so that coroutines of one batch wait together while others compute."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a coroutine."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="reward functions", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def outcome(self, future: Future[Any], seconds: float | None) -> Outcome:
        """Wait for a coroutine, at most ``seconds``.

        One that is late is cancelled. If it blocks the loop instead of waiting, later coroutines get a new loop.
        """
        try:
            return Outcome(future.result(seconds))
        except FutureTimeoutError as error:
            if future.done():  # the function raised it itself
                return Outcome(error=error)
            future.cancel()
            self._replace_if_blocked()
            return Outcome(error=CallTimedOut())
        except Exception as error:  # as above: whatever the user's code raises is the caller's to settle
            return Outcome(error=error)

    def _replace_if_blocked(self) -> None:
        """Leave a loop that does not come round."""
        assert self._loop is not None
        came_round = threading.Event()
        self._loop.call_soon_threadsafe(came_round.set)
        if not came_round.wait(ANSWER_SECONDS):
            self._loop = None


ANSWER_SECONDS = 0.5
"""Time in which an event loop that is not blocked comes round."""

BACKGROUND = BackgroundLoop()
"""The loop of all asynchronous reward functions of the process, so that what they keep open between calls stays usable."""

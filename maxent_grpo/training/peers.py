"""The processes of one run as each other's peers: they meet before anything is written, and end together.

When one fails, all end within seconds, and one message says why (``peer_watch``).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

import torch.distributed as dist
from accelerate import Accelerator

from maxent_grpo.config.root import RootConfig
from maxent_grpo.distributed import from_main
from maxent_grpo.launched import Place, place
from maxent_grpo.training.accelerator import joined_accelerator, require_device
from maxent_grpo.training.peer_watch import PeerWatch

T = TypeVar("T")
_meetings = count()
"""Runs of this process; all processes of a run count alike."""


class Peers:
    """What a process needs of the others beside the collectives of its steps; alone, nothing."""

    def __init__(self, here: Place, accelerator: Accelerator | None = None, watch: PeerWatch | None = None) -> None:
        self.place = here
        self.accelerator = accelerator
        """That of several processes, which meet at once; None alone."""
        self._watch = watch

    def from_main(self, value: T) -> T:
        """The main process's picklable value, on every process."""
        return value if self.accelerator is None else from_main(self.accelerator, value)

    def cause(self, error: BaseException) -> BaseException:
        """What a run that meets this error ends with: the error, or that another process failed first, which brought it about.

        The others learn of it.
        """
        return error if self._watch is None else self._watch.cause(error)

    @contextmanager
    def closing(self, close: Callable[[BaseException], None]) -> Iterator[None]:
        """If another process fails while this one is stuck in the block, ``close`` is called before it is ended there."""
        if self._watch is None:
            yield
            return
        self._watch.close = close
        try:
            yield
        finally:
            self._watch.close = None

    def part(self) -> None:
        """Wait for all to come to the end, the main process with its last file."""
        if self.accelerator is not None and self._watch is not None:
            self.accelerator.wait_for_everyone()
            self._watch.stop()


@contextmanager
def met(config: RootConfig) -> Iterator[Peers]:
    """This process among those that were started with it, for the time of a run.

    Raises:
        PeerError: another process failed.
    """
    here = place()
    if here.size == 1:
        yield Peers(here)
        return
    accelerator = joined_accelerator(config)
    watch = PeerWatch(here, next(_meetings))
    with _listening(watch):
        watch.start()
        try:
            require_device(config, accelerator)
            yield Peers(here, accelerator, watch)
        except BaseException as error:
            cause = watch.cause(error)
            watch.linger()
            if cause is error:
                raise
            raise cause from error
        finally:
            watch.stop()


def leave() -> None:
    """Take this process out of those that were started with it, once their last run is over."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _listening(watch: PeerWatch) -> Iterator[None]:
    """Let SIGTERM be the watch's affair; only the main thread of a program can."""
    if threading.current_thread() is not threading.main_thread():
        try:
            yield
        finally:
            watch.close_signals()
        return
    former = signal.signal(signal.SIGTERM, watch.hold_term)
    former_wakeup = signal.set_wakeup_fd(watch.signals.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(former_wakeup)
        signal.signal(signal.SIGTERM, former)
        watch.close_signals()

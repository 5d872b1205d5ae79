"""Which of the processes of a run this one is, as its launcher says, before torch is loaded.

torchrun, `accelerate launch` and their like start the same command several times, and tell each process its place in the
environment. Process 0 is the main one: it alone prints, makes the run directory and writes the record.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from types import FrameType

MAIN_SPEAKS_WITHIN = 15.0
"""How long another process leaves it to the main one to say what is wrong with the configuration of both [seconds]."""


@dataclass(frozen=True, slots=True)
class Place:
    """A process among those that were started together."""

    rank: int
    """Counted from 0 over all machines; 0 is the main process."""
    size: int
    """How many there are."""
    local_rank: int
    """Counted from 0 on this machine."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run's record."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """In words, for messages."""
        return f"process {self.rank} of {self.size}"


def place() -> Place:
    """The place that the launcher's environment gives (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`); without one, the only process."""
    return Place(_number("RANK", 0), max(_number("WORLD_SIZE", 1), 1), _number("LOCAL_RANK", 0))


def leave_word_to_main(status: int) -> None:
    """Wait for the main process to say what is wrong here as well, and for the launcher to end this process for that.

    A launcher ends all processes once one has failed: one that is faster than the main process would cost the user the message.
    Returns when nobody did, since then only this process knows what is wrong.
    """

    def ended(_number: int, _frame: FrameType | None) -> None:
        os._exit(status)

    signal.signal(signal.SIGTERM, ended)
    time.sleep(MAIN_SPEAKS_WITHIN)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default

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


def launched_alike(command: str) -> str:
    """The command for as many processes as there are now, by torchrun; of several machines, which must find each other, it leaves
    `RENDEZVOUS` to be filled in."""
    size = place().size
    if size == 1:
        return command
    local = _number("LOCAL_WORLD_SIZE", size)
    machines = "" if local == size else f"--nnodes {size // local} RENDEZVOUS "
    script = command.removeprefix("python ") if command.startswith("python ") else f"--no-python {command}"
    return f"torchrun {machines}--nproc_per_node {local} {script}"


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

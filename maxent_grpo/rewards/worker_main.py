"""A process that rewards completions for the program: reads jobs from its input, writes their outcomes to its output.

Each message is a pickle behind its length, between this program and the one that started it. What reward functions print goes
to the standard error. The process ends with its input, which the system closes when the program dies in whatever way.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import queue
import random
import sys
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO

LENGTH_BYTES = 8
GRACE_SECONDS = 1.0
"""Time that a process has to end by itself once its input is closed [seconds]."""


def write_message(stream: BinaryIO, value: Any) -> None:
    """Send a value."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    stream.flush()


def read_message(stream: BinaryIO) -> Any:
    """The next value.

    Raises:
        EOFError: there is none.
    """
    size = _exactly(stream, LENGTH_BYTES)
    return pickle.loads(_exactly(stream, int.from_bytes(size, "big")))


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _seed(name: str, batch: Any) -> None:
    """Seed the generators that a function may draw from by what it is asked, whichever process it is asked in, and when."""
    asked = repr((name, batch.state, list(batch.prompts), list(batch.completions)))
    digest = hashlib.sha256(asked.encode("utf-8", "surrogatepass")).digest()
    random.seed(digest)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(digest[:4], "big"))


def _outcome(terms: Mapping[str, Any], job: tuple[str, Any]) -> tuple[bool, Any]:
    from maxent_grpo.errors import RewardError

    name, batch = job
    _seed(name, batch)
    try:
        return True, terms[name].start(batch)()
    except RewardError as error:
        return False, error
    except Exception as error:  # anything else is told as it is, rather than as a process that died
        return False, RewardError(f"reward term '{name}' raised {error!r} in a worker")


def main() -> None:
    """Answer jobs until there are no more."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path[:] = read_message(incoming)
    jobs: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
    try:
        terms = {recipe.name: recipe.build() for recipe in read_message(incoming)}
    except Exception as error:  # the program says why its functions cannot be had here
        write_message(outgoing, (False, f"{type(error).__name__}: {error}"))
        return
    write_message(outgoing, (True, None))

    def listen() -> None:
        try:
            while True:
                jobs.put(read_message(incoming))
        except EOFError:
            jobs.put(None)
        threading.Event().wait(GRACE_SECONDS)
        os._exit(0)  # a call may go on for ever

    threading.Thread(target=listen, name="jobs", daemon=True).start()
    while (job := jobs.get()) is not None:
        write_message(outgoing, _outcome(terms, job))


if __name__ == "__main__":
    main()

"""One call of foreign code under limits of time and memory that it cannot escape: in a forked child, ended from outside.

Foreign graders may swallow every exception, an interrupt's too, so that only the end of a process stops them.
"""

from __future__ import annotations

import os
import resource
import select
import signal
from collections.abc import Callable
from pathlib import Path

CPU_SECONDS = 2.0
"""CPU time of one call [seconds], so that a busy machine changes no verdict."""
WALL_SECONDS = 60.0
"""Time after which a call that says nothing is given up [seconds]."""
MEMORY = 1 << 29
"""Memory that a call may take beside what the program has [bytes]."""


def limited_call(
    function: Callable[[], float], cpu_seconds: float = CPU_SECONDS, memory: int = MEMORY, wall: float = WALL_SECONDS
) -> float | str:
    """What ``function`` returns; or why there is nothing: ``timeout``, or ``grader_error`` when it raised, ran out of memory or died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(function, writing, cpu_seconds, memory)
    os.close(writing)
    try:
        return _result(reading, child, wall)
    finally:
        os.close(reading)


def _answer(function: Callable[[], float], writing: int, cpu_seconds: float, memory: int) -> None:
    """The child: call, write the number, end without any of the program's clean-up."""
    status = 1
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        used = _address_space()
        if used:
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        os.write(writing, repr(float(function())).encode())
        status = 0
    except BaseException:  # whatever foreign code raises, the child must not run on as a second program
        status = 2
    finally:
        os._exit(status)


def _result(reading: int, child: int, wall: float) -> float | str:
    """What the child says before its time is over; its end closes the pipe, which is an answer too."""
    waiting = select.poll()
    waiting.register(reading, select.POLLIN)
    said = b""
    in_time = bool(waiting.poll(1000 * wall))
    if in_time:
        said = os.read(reading, 64)
    else:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    if said and ended == 0:
        return float(said)
    return "timeout" if not in_time or ended == -signal.SIGPROF else "grader_error"


def _address_space() -> int:
    """What the program has mapped [bytes]; 0 where the system does not say."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[0]) * resource.getpagesize() if file.exists() else 0

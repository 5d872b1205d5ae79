"""Memory that this process has resident, as the system counts it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
HIGH_WATER = "VmHWM:"


def peak_resident_bytes() -> int:
    """The most memory that this program has had resident [bytes].

    Linux hands the peak of getrusage on through exec: a run that a large process has started would report the other's memory.
    """
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(HIGH_WATER):
            return int(line.split()[1]) * 1024
    raise OSError(f"{STATUS} names no {HIGH_WATER}")

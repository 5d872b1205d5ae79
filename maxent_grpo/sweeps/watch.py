"""Telling how jobs fare that run out of sight, whose own words go into a launcher's files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from maxent_grpo.sweeps.record import Standing, SweepRecord, read_jobs, titled

SECONDS_BETWEEN_LOOKS = 2.0


@contextmanager
def watched(folder: Path, sweep: SweepRecord, seconds: float = SECONDS_BETWEEN_LOOKS) -> Iterator[None]:
    """Print a line whenever a job of the sweep in ``folder`` comes to stand otherwise, during the block and at its end."""
    known = {job.name: job.standing for job in read_jobs(folder)}
    has_ended = threading.Event()

    def look() -> None:
        for job in read_jobs(folder):
            if known.get(job.name) is not job.standing:
                known[job.name] = job.standing
                why = f": {job.problems[0]}" if job.standing is Standing.failed else ""
                print(f"{titled(job.name, len(sweep.jobs))}: {job.standing}{why}", flush=True)

    def keep_looking() -> None:
        while not has_ended.wait(seconds):
            look()

    watcher = threading.Thread(target=keep_looking, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        has_ended.set()
        watcher.join()
        look()

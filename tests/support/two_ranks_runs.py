"""Whole runs by several processes, one after the other; called in each of them with ``support.ranks.call_together``."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.runs import train

from maxent_grpo.errors import MaxentGrpoError

Wanted = tuple[str, Sequence[str], str | None]
"""Run directory, overrides, and what to resume from."""


def runs(wanted: Sequence[Wanted]) -> list[int]:
    """Train each of them; the steps that they came to."""
    return [
        train(Path(run_dir), *extra, resume_from=None if source is None else Path(source)).global_step
        for run_dir, extra, source in wanted
    ]


def runs_and_a_full_disk(wanted: Sequence[Wanted], last: Wanted, largest: int) -> tuple[list[int], str]:
    """``runs``, and what one more of them ends with when the main process can write no file of more than ``largest`` bytes."""
    steps = runs(wanted)
    with _small_files(largest if os.environ["RANK"] == "0" else resource.RLIM_INFINITY):
        try:
            runs([last])
        except MaxentGrpoError as error:
            return steps, str(error)
    return steps, "nothing"


@contextmanager
def _small_files(largest: int) -> Iterator[None]:
    """No file may become larger than so many bytes, as on a disk that is full."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)

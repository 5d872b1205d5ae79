"""A sweep's folder has one sweep at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from maxent_grpo.folder_lock import held

SWEEP_LOCK = ".sweep.lock"


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Make the folder and own it for the time of the block.

    Raises:
        ConfigError: a sweep runs there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    refusal = f"hydra.sweep.dir={folder}: a sweep runs there now ({{holder}}); wait for it, or name another folder"
    with held(folder / SWEEP_LOCK, refusal, patience=0.0):
        yield

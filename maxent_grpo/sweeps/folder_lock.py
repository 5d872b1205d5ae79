"""One owner of a folder at a time: a lock that the system takes back when its owner ends, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from maxent_grpo.errors import ConfigError

PATIENCE = 2.0
"""How long a lock is waited for [seconds]: who only asks whether one is held holds it for a moment."""


@contextmanager
def held(path: Path, refusal: str, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock file for the time of the block; its folder must exist.

    Raises:
        ConfigError: another process holds it; the sentence is ``refusal``.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=patience)
    except Timeout as error:
        raise ConfigError(refusal) from error
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether some process holds the lock file."""
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False

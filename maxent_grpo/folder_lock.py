"""One owner of a folder at a time, a run, a job or a sweep: a lock that the system lets go of when its process ends, however it ends.

What is locked is the open file, not its presence or the process number written in it: a file that a killed process leaves
behind locks nothing, whoever has its number now.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from maxent_grpo.errors import ConfigError

LOCK_FILE = ".lock"
PATIENCE = 2.0
"""How long a lock that is held is asked for again: a process that is just ending, or one that only looks [seconds]."""
_NOT_OFFERED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What file systems without locks answer."""

logger = logging.getLogger(__name__)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the lock of an existing run directory; its file is gone afterwards.

    Raises:
        ConfigError: another process holds it, or the file cannot be made.
    """
    name = f"run.dir={run_dir}"
    with held(
        run_dir / LOCK_FILE,
        f"{name}: a run is going on there ({{holder}}); wait for it, stop it, or name another folder",
        PATIENCE,
        name=name,
    ):
        yield


@contextmanager
def held(path: Path, refusal: str, patience: float = PATIENCE, *, name: str | None = None) -> Iterator[None]:
    """Hold a lock file in an existing folder for the time of the block; the file is gone afterwards.

    Where the file system offers no locks, a warning says so and nothing is held.

    Args:
        path: the lock file.
        refusal: the sentence for who does not get it; ``{holder}`` in it becomes who has it.
        patience: how long it is asked for again [seconds].
        name: what the folder is called where it cannot be written to; by default its path.

    Raises:
        ConfigError: another process holds it, or the file cannot be made.
    """
    try:
        file = _acquired(path, refusal, patience)
    except OSError as error:
        name = name or str(path.parent)
        if error.errno not in _NOT_OFFERED:
            raise ConfigError(f"{name} cannot be written to ({error}): choose a folder you can write to") from error
        logger.warning(
            "%s has no locks (%s): see to it that only one process writes there", path.parent, error.strerror
        )
        file = None
    try:
        yield
    finally:
        if file is not None:
            # still locked while it goes, so that nobody can hold the name that is removed
            path.unlink(missing_ok=True)
            file.close()


def is_held(path: Path) -> bool:
    """Whether some process holds a lock file."""
    return _holder_of(path) is not None


def lock_holder(run_dir: Path) -> str | None:
    """Who runs in a directory, in words; None where nobody does."""
    return _holder_of(run_dir / LOCK_FILE)


def _holder_of(path: Path) -> str | None:
    """Who holds a lock file, in words; None where nobody does."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
    except OSError:
        pass  # no file, or no locks: nothing that a look could find
    return None


def _acquired(path: Path, refusal: str, patience: float) -> IO[bytes]:
    """The file, locked, under its name still."""
    deadline = time.monotonic() + patience
    while True:
        file = path.open("ab+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(file)
            file.close()
            if time.monotonic() > deadline:
                raise ConfigError(refusal.replace("{holder}", holder)) from error
            time.sleep(0.05)
            continue
        except BaseException:
            file.close()
            raise
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # its holder removed it in between
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    file.truncate(0)
    file.write(json.dumps(who).encode() + b"\n")
    file.flush()
    return file


def _holder(file: IO[bytes]) -> str:
    file.seek(0)
    try:
        who = json.loads(file.read())
        return f"process {who['pid']} on {who['host']}, since {who['since']}"
    except (ValueError, KeyError, TypeError):
        return "a process that has just begun"

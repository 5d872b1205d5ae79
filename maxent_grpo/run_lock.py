"""One run in a directory at a time: a lock that the system lets go of when its process ends, however it ends.

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

    Where the file system offers no locks, a warning says so and nothing is held.

    Raises:
        ConfigError: another process holds it, or the file cannot be made.
    """
    try:
        file = _acquired(run_dir / LOCK_FILE)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise ConfigError(
                f"run.dir={run_dir} cannot be written to ({error}): choose a folder you can write to"
            ) from error
        logger.warning("%s has no locks (%s): see to it that only one run writes there", run_dir, error.strerror)
        file = None
    try:
        yield
    finally:
        if file is not None:
            # still locked while it goes, so that nobody can hold the name that is removed
            (run_dir / LOCK_FILE).unlink(missing_ok=True)
            file.close()


def lock_holder(run_dir: Path) -> str | None:
    """Who runs in a directory, in words; None where nobody does."""
    try:
        with (run_dir / LOCK_FILE).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
    except OSError:
        pass  # no file, or no locks: nothing that a look could find
    return None


def _acquired(path: Path) -> IO[bytes]:
    """The file, locked, under its name still."""
    deadline = time.monotonic() + PATIENCE
    while True:
        file = path.open("ab+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(file)
            file.close()
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"run.dir={path.parent}: a run is going on there ({holder}); wait for it, stop it, or name another folder"
                ) from error
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

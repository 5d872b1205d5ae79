"""Replacing a file so that a reader, or a crash, sees the old content or the new, never a part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from maxent_grpo.errors import StorageError

PARTIAL = ".partial"
"""End of the names of files that are being written."""


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, durable: bool = True) -> None:
    """Let ``write`` fill a file beside ``path``, make it durable, then rename it onto ``path``.

    Without ``durable`` a power cut may leave the file empty; that the process is killed may not.
    Whatever ``write`` raises is passed on, and ``path`` keeps its old content.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if durable:
        sync_directory(path.parent)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """What the system says against writing ``path``, a file of a run or the run's folder, as a sentence about it.

    Raises:
        StorageError: in place of an OSError.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror or error}): make room or make it writable, then go on from the run's last "
            "checkpoint"
        ) from error


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, so that a renamed or created file survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

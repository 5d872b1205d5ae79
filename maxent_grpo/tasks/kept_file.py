"""Files that are made once, under a name that says what they were made from, and then only read."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from maxent_grpo.errors import DataError


def kept_file(folder: str, kind: str, made_from: Any, ending: str, write: Callable[[Path], None]) -> Path:
    """The file made from ``made_from`` (anything that JSON can say), written by ``write`` unless it is there.

    It appears under its name only when it is whole, so that an interrupted writer leaves nothing to be mistaken for it, and
    several processes may ask at once.

    Raises:
        DataError: the folder cannot be written.
    """
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:24]
    path = Path(folder).expanduser() / f"{kind}-{key}{ending}"
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a name that no other process has, also not one with the same number on another machine
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(descriptor)
    except OSError as error:
        raise DataError(
            f"data.cache_dir={folder}: cannot be written ({error.strerror}); name another folder"
        ) from error
    unfinished = Path(name)
    try:
        write(unfinished)
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path

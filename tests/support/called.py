"""A command called in this process: far quicker than an interpreter of its own, and the same to a reader of its output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest


class Said(NamedTuple):
    """What a command left behind, by the names of ``subprocess.CompletedProcess``."""

    returncode: int
    stdout: str
    stderr: str


def called(main: Callable[[list[str]], object], arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Said:
    """Call ``main``; a ``SystemExit`` with a sentence prints it and has status 1, as the interpreter does.

    Handlers that it adds to the root logger or to Hydra's, as Hydra does, are taken away again with the streams they hold.
    """
    status = 0
    loggers = {logger: (logger.handlers[:], logger.level) for logger in map(logging.getLogger, (None, "hydra"))}
    try:
        main(list(arguments))
    except SystemExit as ended:
        status, sentence = (ended.code or 0, "") if isinstance(ended.code, int | None) else (1, f"{ended.code}\n")
    else:
        sentence = ""
    finally:
        for logger, (handlers, level) in loggers.items():
            logger.handlers[:] = handlers
            logger.setLevel(level)
    said = capsys.readouterr()
    return Said(status, said.out, said.err + sentence)

"""Runs in real processes that can be killed, at the price of a fork: a server imports everything once and forks on demand."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support.runs import configured

from maxent_grpo.commands import train as command
from maxent_grpo.training.preview import run as preview
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.stopping import EXIT_STATUS

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["support.processes"])
assert preview.start  # what the command imports when it starts a run is imported before the fork


@dataclass(frozen=True)
class FileOperation:
    """The ``count``-th time that an operation, by the name of its audit event, meets a path that contains ``path``."""

    event: str
    path: str
    count: int = 1


@dataclass(frozen=True)
class Start:
    """A run to start, and the system that it meets."""

    run_dir: Path
    overrides: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    as_command: bool = False
    """Through the command line, from words to exit status."""
    environment: Mapping[str, str] = field(default_factory=dict)
    user: int | None = None
    """Whom the process becomes."""
    largest_file: int | None = None
    """Limit of the system on the size of a file [bytes]."""
    said: Path | None = None
    """Where standard output and standard error go."""
    dies_at: FileOperation | None = None
    """The operation before which it is killed."""


def begin(start: Start) -> ForkServerProcess:
    """Start it; ``exitcode`` is minus the signal's number for a process that one ended."""
    return forked(_run, start)


def forked(function: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """A process of its own that calls a function."""
    _serve()
    process = CONTEXT.Process(target=function, args=arguments)
    process.start()
    return process


def finish(start: Start, limit: float = 120.0) -> int:
    """Start it and wait; its exit status."""
    process = begin(start)
    process.join(limit)
    status = process.exitcode
    assert status is not None, f"still running after {limit} s"
    return status


def wait_until(process: ForkServerProcess, condition: Callable[[], bool], limit: float = 60.0) -> bool:
    """Whether the condition came to hold while the process ran."""
    deadline = time.monotonic() + limit
    while not condition():
        if not process.is_alive() or time.monotonic() > deadline:
            return condition()
        time.sleep(0.001)
    return True


@cache
def _serve() -> None:
    """Start the server where it finds this module, which it is not told."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    with patch.dict(os.environ, {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}):
        forkserver.ensure_running()


def _run(start: Start) -> None:
    os.environ.update(start.environment)
    if start.said is not None:
        file = os.open(start.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
    if start.largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (start.largest_file, start.largest_file))
    if start.user is not None:
        os.setuid(start.user)
    if start.dies_at is not None:
        _die_at(start.dies_at)
    if start.as_command:
        # the jobs of a sweep have folders of their own
        folder = [] if "-m" in start.overrides else [f"run.dir={start.run_dir}"]
        command.main([*start.overrides, *folder])
        return
    result = run_from_config(configured(start.run_dir, *start.overrides, settings=start.settings))
    if result.stopped:
        sys.exit(EXIT_STATUS[result.stopped])


def _die_at(operation: FileOperation) -> None:
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event == operation.event and any(operation.path in str(argument) for argument in arguments):
            seen += 1
            if seen == operation.count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)

"""Trackers: writers to services beside the run's own files, whose errors cost the run nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from maxent_grpo.report.read import COMPLETIONS_FILE, METRICS_FILE, iterate_jsonl, iterate_metrics
from maxent_grpo.telemetry.quiet import QuietWriter

logger = logging.getLogger(__name__)

Goal = Literal["min", "max"]


@dataclass(slots=True)
class TrackedRun:
    """What trackers are told of a run beside its record. Settings and overrides come without secrets."""

    run_dir: Path
    config: Mapping[str, Any]
    """The resolved settings as nested plain values."""
    options: Mapping[str, str]
    """Chosen option of each configuration group."""
    overrides: Sequence[str]
    controller_state: Path
    """The file that keeps the controller's state."""
    goal: Callable[[str], Goal | None]
    """Which direction of a metric is better, None where neither is."""
    resumed_from: Path | None = None
    """Directory of the run that this one continues."""
    failed: bool = False
    """Whether the run ended in an error; set before the writers are closed."""


class Tracker(QuietWriter):
    """A writer whose service may fail: the first error is told, and nothing more goes there; the run goes on."""

    service = "the tracker"

    def __init__(self, run: TrackedRun) -> None:
        self.run = run
        self.is_working = False

    def attempt(self, action: Callable[[], object]) -> None:
        """Do something with the service if it works."""
        if not self.is_working:
            return
        try:
            action()
        except Exception as error:
            # a service of others may raise anything, and none of it may end a run whose own files are complete
            self.is_working = False
            logger.warning(
                "%s failed (%s: %s): nothing more is logged there, and the run goes on",
                *(self.service, type(error).__name__, error),
            )


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """The lines that a run's own files hold of a step."""

    step: int
    metrics: dict[str, float]
    completions: list[dict[str, Any]]


def recorded_steps(run_dir: Path, after: int, until: int) -> Iterator[RecordedStep]:
    """What the files of a run hold of the steps beyond ``after`` and up to ``until``, in order.

    Steps increase in both files, so that they are read side by side and one step's lines are in memory.
    """
    if after >= until or not (run_dir / METRICS_FILE).is_file():
        return
    groups = _recorded_completions(run_dir)
    at, group = next(groups, (until + 1, []))
    for row in iterate_metrics(run_dir):
        step = row.pop("step")
        while at < step:
            at, group = next(groups, (until + 1, []))
        if after < step <= until:
            yield RecordedStep(step, row, group if at == step else [])


def _recorded_completions(run_dir: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    path = run_dir / COMPLETIONS_FILE
    lines = (line for _, line in iterate_jsonl(path)) if path.is_file() else iter(())
    for step, group in groupby(lines, key=lambda line: line["step"]):
        yield step, list(group)

"""The writers of a run in the order they must stand in, and the one that keeps its report up to date."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from maxent_grpo.config.logging import LoggingConfig, TrackerName
from maxent_grpo.launched import place
from maxent_grpo.report.read import METRICS_FILE, PAGE_FILE, PICTURE_FILE
from maxent_grpo.telemetry.console import build_console
from maxent_grpo.telemetry.files import CompletionsFile, EvaluationsFile, MetricsFile
from maxent_grpo.telemetry.quiet import QuietWriter
from maxent_grpo.telemetry.run_dir import PACKAGE_LOGGER, RunLog
from maxent_grpo.telemetry.tensorboard_tracker import TensorBoardTracker
from maxent_grpo.telemetry.tracking import TrackedRun
from maxent_grpo.telemetry.wandb_tracker import WandbTracker
from maxent_grpo.training.types.logging import LoggingHandles, Writer

logger = logging.getLogger(__name__)

FREE_SECONDS = 20.0
"""Drawing that any run may have, some thirty pictures of a short one [s]."""
MOST_SHARE = 0.02
"""Share of a run's time that drawing may take beyond that."""


class ReportWriter(QuietWriter):
    """Redraws report.png at evaluations but that of step 0, and writes it and report.html at the end.

    It stands after the writers of the files that they show. Each drawing reads the whole record, so that drawing at every
    evaluation of a long run would cost the square of its length: beyond ``FREE_SECONDS`` the picture is drawn again only
    while drawing has taken at most ``MOST_SHARE`` of the run's time.

    A report can be made again at any time, a run cannot: what goes wrong here is told and the run goes on.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._has_new_lines = False
        self._clock = clock
        self._began, self._drawing_seconds = clock(), 0.0

    def _attempt(self, name: str, make: Callable[[Path], object]) -> None:
        try:
            make(self._run_dir)
        except Exception as error:
            # drawing must not cost a run its training, whatever is wrong with it
            logger.warning(
                "%s could not be made (%s: %s); the run is not affected; "
                "`python -m maxent_grpo report %s` makes it from the recorded files",
                *(name, type(error).__name__, error, self._run_dir),
            )

    def _draw(self) -> None:
        # matplotlib takes about a second to load, which a run without a report need not wait for
        from maxent_grpo.report.picture import draw_picture

        before = self._clock()
        self._attempt(PICTURE_FILE, draw_picture)
        self._drawing_seconds += self._clock() - before

    def _may_draw(self) -> bool:
        """Whether drawing has not become a burden."""
        return self._drawing_seconds <= FREE_SECONDS + MOST_SHARE * (self._clock() - self._began)

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Redraw the picture when the line holds an evaluation.

        That of step 0 alone makes no curve yet, and the first update need not wait for matplotlib.
        """
        self._has_new_lines = True
        if step > 0 and any(name.startswith("eval/") for name in metrics) and self._may_draw():
            self._draw()

    def close(self) -> None:
        """Make both of everything that was recorded, however the run ended; closing again does nothing."""
        if self._has_new_lines and (self._run_dir / METRICS_FILE).is_file():
            from maxent_grpo.report.page import write_page

            self._has_new_lines = False
            self._draw()
            self._attempt(PAGE_FILE, write_page)


def build_logging(config: LoggingConfig, run_dir: Path, tracked: TrackedRun | None = None) -> LoggingHandles:
    """The writers that ``logging`` asks for: metrics, evaluations, completions, report, trackers, log, console.

    The report stands after the files that it reads, trackers after the report that they take along, the log after these, to
    hold what goes wrong there, and the console last, which ends by naming what the others wrote. Without ``tracked`` there are no
    trackers. Of several processes the main one has all writers, and the others none.
    """
    if not place().is_main:
        logging.getLogger(PACKAGE_LOGGER).addHandler(logging.NullHandler())  # or Python would print the warnings
        return LoggingHandles(
            run_dir, completions_every=config.completions_every, completions_per_step=config.completions_per_step
        )  # all send their part of what is written
    with ExitStack() as opened:  # what fails to open must not leave the log listening to the runs after this one
        log = RunLog(run_dir)
        opened.callback(log.close)
        writers: list[Writer] = [MetricsFile(run_dir), EvaluationsFile(run_dir)]
        if config.completions_every:
            writers.append(CompletionsFile(run_dir))
        if config.report:
            writers.append(ReportWriter(run_dir))
        handles = LoggingHandles(
            run_dir=run_dir,
            writers=writers,
            completions_every=config.completions_every,
            completions_per_step=config.completions_per_step,
        )
        if tracked is not None:
            writers += build_trackers(config, tracked, handles.write_note)
        writers += [log, build_console(config.console, run_dir)]
        opened.pop_all()
        return handles


def build_trackers(config: LoggingConfig, run: TrackedRun, say: Callable[[str], None]) -> list[Writer]:
    """The writers of ``logging.trackers``; ``say`` tells the user where to look."""
    trackers: list[Writer] = []
    if TrackerName.wandb in config.trackers:
        trackers.append(WandbTracker(config.wandb, run, say))
    if TrackerName.tensorboard in config.trackers:
        trackers.append(TensorBoardTracker(run))
    return trackers

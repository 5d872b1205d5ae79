"""The terminal: a live progress line, plain lines, or nothing.

Warnings of the package's loggers are shown among the notes, since a run directory's log would otherwise hide them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from rich.console import Console as Terminal
from rich.console import ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from maxent_grpo.config.logging import Console
from maxent_grpo.config.secrets import redacted
from maxent_grpo.report.read import METRICS_FILE, iterate_metrics
from maxent_grpo.telemetry.progress import Progress, closing_lines, evaluation_line, live_line, plain_line
from maxent_grpo.telemetry.quiet import QuietWriter
from maxent_grpo.telemetry.run_dir import PACKAGE_LOGGER
from maxent_grpo.training.types.logging import Writer

SECONDS_BETWEEN_LINES = 1.0


class _Warnings(logging.Handler):
    """Shows each warning of the package as a sentence."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(f"{record.levelname.lower()}: {record.getMessage()}")


class SilentConsole(QuietWriter):
    """Shows nothing."""


class _Tracker:
    """Keeps the newest value of every metric, the evaluations, and the pace of the steps."""

    def __init__(self, run_dir: Path, clock: Callable[[], float]) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._total = 0
        self._step = 0
        self._first_step = 0
        self._pace_since = clock()
        self._latest: dict[str, float] = {}
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        """The first and the newest."""
        self.is_started = False

    def start(self, total_steps: int, first_step: int) -> None:
        self.is_started = True
        self._total = total_steps
        self._step = self._first_step = first_step
        self._pace_since = self._clock()
        if first_step > 0 and (self._run_dir / METRICS_FILE).is_file():
            for row in iterate_metrics(self._run_dir):
                if row["step"] <= first_step:
                    self._take(row["step"], {name: value for name, value in row.items() if name != "step"})

    def _take(self, step: int, metrics: Mapping[str, float]) -> None:
        self._latest.update(metrics)
        evaluation = {name: value for name, value in metrics.items() if name.startswith("eval/")}
        if evaluation:
            self.evaluations[1:] = [(step, evaluation)]

    def update(self, step: int, metrics: Mapping[str, float]) -> Progress:
        self._step = step
        self._take(step, metrics)
        if step <= self._first_step:
            self._pace_since = self._clock()
        return self.progress()

    def progress(self) -> Progress:
        num_done = self._step - self._first_step
        num_left = self._total - self._step
        seconds = self._clock() - self._pace_since
        eta = seconds / num_done * num_left if num_done > 0 else None
        return Progress(step=self._step, total=self._total, latest=self._latest, eta_seconds=eta)

    def closing(self) -> list[str]:
        return closing_lines(self.progress(), self._run_dir, self.evaluations) if self.is_started else []


class _SpeakingConsole(QuietWriter):
    """What the consoles that speak share: notes, warnings, a line for every evaluation, and the closing lines."""

    def __init__(self, run_dir: Path, clock: Callable[[], float]) -> None:
        self._tracker = _Tracker(run_dir, clock)
        self._total = 0
        self._warnings = _Warnings(self.write_note)
        logging.getLogger(PACKAGE_LOGGER).addHandler(self._warnings)
        self._is_open = True

    def _print(self, line: str) -> None:
        """Show a line."""
        raise NotImplementedError

    def _show_step(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Show where the run stands after a line of metrics."""

    def _stop(self) -> None:
        """Take away what is drawn in place."""

    def start(self, total_steps: int, first_step: int) -> None:
        """Remember the range of steps."""
        self._total = total_steps
        self._tracker.start(total_steps, first_step)

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the step, and an evaluation on a line of its own."""
        self._show_step(self._tracker.update(step, metrics), metrics)
        if any(name.startswith("eval/") for name in metrics):
            self._print(evaluation_line(step, self._total, metrics))

    def write_note(self, message: str) -> None:
        """Show the sentence, without secrets."""
        self._print(redacted(message))

    def close(self) -> None:
        """Say where to look; closing again does nothing."""
        if self._is_open:
            self._is_open = False
            logging.getLogger(PACKAGE_LOGGER).removeHandler(self._warnings)
            self._stop()
            for line in ["", *self._tracker.closing()]:
                self._print(line)


class PlainConsole(_SpeakingConsole):
    """Aligned lines for a log or a pipe: the first and last step, about one a second between, and every evaluation."""

    def __init__(
        self, run_dir: Path, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(run_dir, clock)
        self._stream = stream if stream is not None else sys.stdout
        self._clock = clock
        self._last_line_at: float | None = None

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def _show_step(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Print the step's line unless one was printed within the last second."""
        now = self._clock()
        is_due = self._last_line_at is None or now - self._last_line_at >= SECONDS_BETWEEN_LINES
        has_step_metrics = any(not name.startswith("eval/") for name in metrics)
        if has_step_metrics and (is_due or progress.step >= self._total):
            self._print(plain_line(progress))
            self._last_line_at = now


class _LiveLine:
    """The progress line, laid out anew for the terminal's present width."""

    def __init__(self, tracker: _Tracker) -> None:
        self._tracker = tracker

    def __rich_console__(self, console: Terminal, options: ConsoleOptions) -> RenderResult:
        is_ascii = not options.encoding.lower().startswith("utf")
        line = live_line(self._tracker.progress(), options.max_width, is_ascii)
        text = Text(line, no_wrap=True, overflow="crop", end="")
        text.highlight_regex(r"[━#]+", "cyan")
        text.highlight_regex(r"(?<= )[\d.,:]+(?=  |$)", "bold")
        yield text


class LiveConsole(_SpeakingConsole):
    """One line that is redrawn in place; notes and evaluations stay above it."""

    def __init__(
        self, run_dir: Path, terminal: Terminal | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(run_dir, clock)
        self._terminal = terminal if terminal is not None else Terminal(highlight=False)
        self._live: Live | None = None

    def _print(self, line: str) -> None:
        self._terminal.print(Text(line), soft_wrap=True)

    def start(self, total_steps: int, first_step: int) -> None:
        """Show the line."""
        super().start(total_steps, first_step)
        self._live = Live(_LiveLine(self._tracker), console=self._terminal, refresh_per_second=4, transient=True)
        self._live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()


def build_console(mode: Console, run_dir: Path) -> Writer:
    """The console writer of ``logging.console``: `auto` is live when standard output is a terminal, else plain."""
    if mode is Console.auto:
        mode = Console.live if sys.stdout.isatty() else Console.plain
    match mode:
        case Console.live:
            return LiveConsole(run_dir)
        case Console.plain:
            return PlainConsole(run_dir)
        case Console.silent:
            return SilentConsole()
    raise ValueError(f"unknown console mode {mode!r}")

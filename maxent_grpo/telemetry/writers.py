"""The writers of a run in the order they must stand in, and the one that keeps curves.png up to date."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from maxent_grpo.config.logging import LoggingConfig
from maxent_grpo.report.read import METRICS_FILE
from maxent_grpo.telemetry.console import build_console
from maxent_grpo.telemetry.files import CompletionsFile, EvaluationsFile, MetricsFile
from maxent_grpo.telemetry.quiet import QuietWriter
from maxent_grpo.telemetry.run_dir import RunLog
from maxent_grpo.training.types.logging import LoggingHandles, Writer


class CurvesWriter(QuietWriter):
    """Redraws curves.png from metrics.jsonl at every evaluation and at the end; stands after the metrics file."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._has_undrawn_lines = False

    def _draw(self) -> None:
        # matplotlib takes about a second to load, which a run without curves need not wait for
        from maxent_grpo.report.curves import draw_curves

        draw_curves(self._run_dir)
        self._has_undrawn_lines = False

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Redraw when the line holds an evaluation."""
        self._has_undrawn_lines = True
        if any(name.startswith("eval/") for name in metrics):
            self._draw()

    def close(self) -> None:
        """Draw the steps since the last picture."""
        if self._has_undrawn_lines and (self._run_dir / METRICS_FILE).is_file():
            self._draw()


def build_logging(config: LoggingConfig, run_dir: Path) -> LoggingHandles:
    """The writers that ``logging`` asks for: log, metrics, evaluations, completions, curves, console.

    The metrics file stands before the curves, which read it, and the console last, which ends by naming what the others
    wrote. Called on the main process only; the others use ``LoggingHandles(run_dir)`` without writers.
    """
    writers: list[Writer] = [RunLog(run_dir), MetricsFile(run_dir), EvaluationsFile(run_dir)]
    if config.completions_every:
        writers.append(CompletionsFile(run_dir))
    if config.curves:
        writers.append(CurvesWriter(run_dir))
    writers.append(build_console(config.console, run_dir))
    return LoggingHandles(
        run_dir=run_dir,
        writers=writers,
        completions_every=config.completions_every,
        completions_per_step=config.completions_per_step,
    )

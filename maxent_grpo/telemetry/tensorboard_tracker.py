"""TensorBoard's event files in the run directory: metrics as scalars; settings and completions as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maxent_grpo.telemetry.completion_table import completions_text
from maxent_grpo.telemetry.config_text import config_text
from maxent_grpo.telemetry.tracking import TrackedRun, Tracker, recorded_steps

FOLDER = "tensorboard"
"""Folder of a run directory in which the event files are."""
CONFIG_TAG, COMPLETIONS_TAG = "config", "completions"


class TensorBoardTracker(Tracker):
    """Writes `<run>/tensorboard`, each metric and text under its optimiser step.

    A run that is resumed in its own folder takes back what was written beyond the checkpoint; in a new folder the history
    that it starts with is written first.
    """

    service = "TensorBoard"

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._writer: Any = None

    def start(self, total_steps: int, first_step: int) -> None:
        """Open the event file, and write what it lacks."""
        self.is_working = True
        self.attempt(lambda: self._open(first_step))

    def _open(self, first_step: int) -> None:
        # tensorboard takes half a second to load, which a run without it need not wait for
        from torch.utils.tensorboard import SummaryWriter

        folder: Path = self.run.run_dir / FOLDER
        has_history = any(folder.glob("events.out.tfevents.*"))
        # of a run that begins anew in its folder, the evaluation before the first step comes again as well
        again = first_step + 1 if first_step else 0
        self._writer = SummaryWriter(str(folder), purge_step=again if has_history or first_step else None)
        if not has_history:
            for recorded in recorded_steps(self.run.run_dir, -1, first_step):
                self._scalars(recorded.step, recorded.metrics)
                self._texts(recorded.step, recorded.completions)
        settings = "\n".join(f"    {line}" for line in config_text(self.run.config).splitlines())
        self._writer.add_text(CONFIG_TAG, settings, first_step)

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Each as a scalar of its name."""
        self.attempt(lambda: self._scalars(step, metrics))

    def _scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def write_completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        """All of a step as one text."""
        self.attempt(lambda: self._texts(step, records))

    def _texts(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        if records:
            self._writer.add_text(COMPLETIONS_TAG, completions_text(records), step)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self.attempt(lambda: self._writer.flush())

    def close(self) -> None:
        """Write the rest and close the file; closing again does nothing."""
        self.attempt(lambda: self._writer.close())
        self.is_working = False

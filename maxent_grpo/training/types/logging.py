"""What the training loop writes to: a set of writers behind one handle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Writer(Protocol):
    """One destination of a run's record. Implementations are told everything and keep what concerns them."""

    def start(self, total_steps: int, first_step: int) -> None:
        """The loop is about to run steps ``first_step + 1 .. total_steps``."""

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of optimiser step ``step``, already reduced over ranks."""

    def write_completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Completions of the rollout that step ``step`` trained on, one mapping each."""

    def write_evaluation(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """An evaluation at step ``step``, one mapping each held-out row."""

    def write_note(self, message: str) -> None:
        """A sentence for the person watching."""

    def flush(self) -> None:
        """Make everything written so far durable; called before a checkpoint is committed."""

    def close(self) -> None:
        """The run ended, normally or not."""


@dataclass
class LoggingHandles:
    """The writers of a run and its directory; every method forwards to each writer in turn."""

    run_dir: Path
    writers: list[Writer] = field(default_factory=list)
    completions_every: int = 1
    completions_per_step: int = 64

    def start(self, total_steps: int, first_step: int) -> None:
        for writer in self.writers:
            writer.start(total_steps, first_step)

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for writer in self.writers:
            writer.write_metrics(step, metrics)

    def completions_due(self, step: int) -> bool:
        """Whether completions of optimiser step ``step`` are recorded."""
        return self.completions_every > 0 and step % self.completions_every == 0

    def write_completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        if self.completions_due(step):
            for writer in self.writers:
                writer.write_completions(step, records[: self.completions_per_step])

    def write_evaluation(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for writer in self.writers:
            writer.write_evaluation(step, rows)

    def write_note(self, message: str) -> None:
        for writer in self.writers:
            writer.write_note(message)

    def flush(self) -> None:
        for writer in self.writers:
            writer.flush()

    def close(self) -> None:
        problems: list[OSError] = []
        for writer in self.writers:
            try:
                writer.close()
            except OSError as error:
                problems.append(error)  # one file that cannot be written must not leave the others open
        if problems:
            raise problems[0]

"""A writer that keeps nothing: the base of those that keep one part of a run's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class QuietWriter:
    """Implements ``Writer`` by ignoring everything; a writer overrides what concerns it."""

    def start(self, total_steps: int, first_step: int) -> None:
        """Nothing to prepare."""

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Not kept here."""

    def write_completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Not kept here."""

    def write_evaluation(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Not kept here."""

    def write_note(self, message: str) -> None:
        """Not kept here."""

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""

"""Whole runs by several processes at once, one after the other in the same processes; called with ``support.ranks.call_together``."""

from __future__ import annotations

from pathlib import Path

from support.runs import train


def runs(wanted: list[tuple[str, list[str], str | None]]) -> list[int]:
    """Train each of (run directory, overrides, what to resume from); the steps that each came to."""
    return [
        train(Path(run_dir), *extra, resume_from=None if source is None else Path(source)).global_step
        for run_dir, extra, source in wanted
    ]

"""Run directories as arguments of a command."""

from __future__ import annotations

import argparse
from pathlib import Path

from maxent_grpo.report.read import CONFIG_FILE, METRICS_FILE


def require_run(parser: argparse.ArgumentParser, run: Path) -> None:
    """Exit with status 2 and one line when a folder lacks a run's settings or metrics."""
    missing = [name for name in (CONFIG_FILE, METRICS_FILE) if not (run / name).is_file()]
    if missing:
        command = parser.prog.rpartition(" ")[2]
        parser.exit(2, f"{command}: {run} is not a run directory (no {', no '.join(missing)})\n")

"""`logging`: what is shown and recorded."""

from dataclasses import dataclass
from enum import StrEnum


class Console(StrEnum):
    """Progress display."""

    auto = "auto"
    live = "live"
    plain = "plain"
    silent = "silent"


@dataclass(slots=True)
class LoggingConfig:
    """Files in the run directory and the terminal."""

    console: Console = Console.auto
    """`live` progress line, `plain` lines, `silent`, or `auto`: live on a terminal, else plain."""
    completions_every: int = 10
    """Optimiser steps between records in completions.jsonl; 0 records none [steps]."""
    completions_per_step: int = 64
    """Most completions recorded at a step, whole groups first [completions]."""
    report: bool = True
    """Draw report.png at every evaluation after the first update and at the end, and write report.html at the end."""

"""Signals that a run sends itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from maxent_grpo.telemetry.quiet import QuietWriter


class Sends(QuietWriter):
    """Sends this process signals when the line of a step is written."""

    def __init__(self, step: int, *signals: signal.Signals) -> None:
        self._step, self._signals = step, signals

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._step:
            for each in self._signals:
                os.kill(os.getpid(), each)

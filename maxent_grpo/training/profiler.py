"""`run.profile`: what chosen optimiser steps spend their time on, operator by operator.

A profiled step computes what it would have computed; it only takes longer, so that its `time/*` are those of a profiled step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from maxent_grpo.training.clock import PhaseClock

PROFILES = "profile"
"""Folder of a run directory."""
DEAREST = 30
"""Operators in the table."""

logger = logging.getLogger(__name__)


class StepProfiler:
    """Writes a trace and a table of each chosen step into a run directory."""

    def __init__(self, run_dir: Path, steps: Sequence[int], clock: PhaseClock) -> None:
        """Watch ``steps``, counted from 1; the clock's phases are the labels in the trace."""
        self._folder, self._steps, self._clock = run_dir / PROFILES, frozenset(steps), clock

    @contextmanager
    def watch(self, step: int) -> Iterator[None]:
        """Profile the enclosed block if ``step`` is one of those chosen; a block that fails leaves nothing."""
        if step not in self._steps:
            yield
            return
        on_gpu = torch.cuda.is_available()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        self._clock.labels = True
        try:
            # a name of our own for the trace: the profiler would draw one from Python's generator, whose state a run saves
            named = f"step_{step}"
            with profile(activities=activities, acc_events=True, custom_trace_id_callback=lambda: named) as seen:
                yield
        finally:
            self._clock.labels = False
        with self._clock.phase("log"):
            self._write(seen, step, "self_cuda_time_total" if on_gpu else "self_cpu_time_total")

    def _write(self, seen: profile, step: int, order: str) -> None:
        self._folder.mkdir(exist_ok=True)
        trace = self._folder / f"step_{step}.json.gz"
        seen.export_chrome_trace(str(trace))
        table = seen.key_averages().table(sort_by=order, row_limit=DEAREST, max_name_column_width=60)
        trace.with_name(f"step_{step}.txt").write_text(table + "\n", encoding="utf-8")
        logger.info("profiled step %d: %s", step, trace)

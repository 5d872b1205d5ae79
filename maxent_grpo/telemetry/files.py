"""The durable record of a run: one JSON object a line, appended whole, never rewritten while the run goes on.

metrics.jsonl has one line an optimiser step; completions.jsonl one line a recorded completion; evaluations.jsonl one line a
held-out row of an evaluation.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from maxent_grpo.errors import DataError, NonFiniteError
from maxent_grpo.report.atomic import storage_errors, sync_directory
from maxent_grpo.report.read import COMPLETIONS_FILE, EVALUATIONS_FILE, METRICS_FILE, iterate_jsonl
from maxent_grpo.telemetry.quiet import QuietWriter

logger = logging.getLogger(__name__)


class _LineFile:
    """A file of JSON lines whose steps increase; continues one that exists, after dropping a half-written last line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_step = -1
        if path.exists():
            self._recover()
        with storage_errors(path):
            # unbuffered: what cannot be written is known at once, and nothing waits to fail again
            self._file = path.open("ab", buffering=0)
            sync_directory(path.parent)

    def _recover(self) -> None:
        whole_bytes = 0
        for line, value in iterate_jsonl(self.path):
            whole_bytes += len(line)
            if not isinstance(value.get("step"), int):
                raise DataError(
                    f"{self.path} has a line without a whole-numbered step: restore the file, or move it away"
                )
            self.last_step = max(self.last_step, value["step"])
        torn_bytes = self.path.stat().st_size - whole_bytes
        if torn_bytes:
            logger.warning("%s ended in a half-written line; its %d bytes are dropped", self.path, torn_bytes)
            os.truncate(self.path, whole_bytes)

    def append(self, step: int, objects: Sequence[Mapping[str, Any]]) -> None:
        """Write one line an object, all of them in one go; ``step`` must be beyond every step in the file.

        Raises:
            StorageError: the disk did not take them; then none is in the file.
        """
        if step <= self.last_step:
            raise ValueError(
                f"{self.path} already holds step {self.last_step}, so step {step} cannot be added: each step is written "
                "once and in order; a resumed run first cuts its history back to the step it continues from"
            )
        lines = [json.dumps({"step": step, **value}, allow_nan=False) + "\n" for value in objects]
        with storage_errors(self.path):
            self._write("".join(lines).encode("ascii"))
        self.last_step = step

    def _write(self, data: bytes) -> None:
        """All of it, or nothing."""
        whole = self.path.stat().st_size
        rest = memoryview(data)
        try:
            while rest:  # a disk that is nearly full takes a part
                rest = rest[self._file.write(rest) :]
        except OSError:
            os.ftruncate(self._file.fileno(), whole)
            raise

    def sync(self) -> None:
        """Make every line durable."""
        if not self._file.closed:
            with storage_errors(self.path):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Make every line durable and close; closing again does nothing."""
        self.sync()
        self._file.close()


def _number(name: str, value: object, step: int) -> int | float:
    if isinstance(value, Integral):
        return int(value)
    if not isinstance(value, Real):
        raise TypeError(f"metric {name} at step {step} is a {type(value).__name__}, not a number")
    if not math.isfinite(value):
        raise NonFiniteError(
            f"metric {name} is {float(value)} at step {step}: averages and curves built on it would be wrong from here "
            "on; find what it is computed from (an empty selection divides by zero), or leave it out of steps that have none"
        )
    return float(value)


class MetricsFile(QuietWriter):
    """Writes metrics.jsonl: ``{"step": n, "<group>/<name>": number, ...}``, keys sorted, numbers exact and finite."""

    def __init__(self, run_dir: Path) -> None:
        self._lines = _LineFile(run_dir / METRICS_FILE)

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the line of ``step``.

        Raises:
            NonFiniteError: a metric is NaN or infinite; nothing is written.
            ValueError: the step is not beyond those already written, or a metric is called "step".
        """
        if "step" in metrics:
            raise ValueError("a metric cannot be called step: that key is the line's own")
        self._lines.append(step, [{name: _number(name, metrics[name], step) for name in sorted(metrics)}])

    def flush(self) -> None:
        """Flush and fsync."""
        self._lines.sync()

    def close(self) -> None:
        """Flush, fsync and close."""
        self._lines.close()


def _plain(value: object, where: str) -> object:
    """A value as JSON can hold it: keys sorted, and NaN, which marks a number that does not exist, as null."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        if math.isinf(value):
            raise NonFiniteError(f"{where} is {float(value)}: a record holds finite numbers only")
        return None if math.isnan(value) else float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key], f"{where}.{key}") for key in sorted(value, key=str)}
    if isinstance(value, Sequence):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{where} is a {type(value).__name__}, which a line of JSON cannot hold")


def _record_lines(what: str, step: int, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for record in records:
        where = f"{what} of row {record.get('row_id', '?')} at step {step}"
        fields = sorted(name for name in record if name != "step")
        lines.append({name: _plain(record[name], f"{where}: {name}") for name in fields})
    return lines


class CompletionsFile(QuietWriter):
    """Writes completions.jsonl: one line a completion with its prompt, rewards and weights; null where a number is undefined."""

    def __init__(self, run_dir: Path) -> None:
        self._lines = _LineFile(run_dir / COMPLETIONS_FILE)

    def write_completions(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Append one line for each record.

        Raises:
            NonFiniteError: a number is infinite; nothing is written.
            ValueError: the step is not beyond those already written.
        """
        if records:
            self._lines.append(step, _record_lines("completion", step, records))

    def flush(self) -> None:
        """Flush and fsync."""
        self._lines.sync()

    def close(self) -> None:
        """Flush, fsync and close."""
        self._lines.close()


class EvaluationsFile(QuietWriter):
    """Writes evaluations.jsonl: one line a held-out row and evaluation; the file begins with the first evaluation.

    ``{"step", "row_id", "num_samples", "num_right", "mode_counts": {mode: count}, "num_modes", "mean_reward", "mean_length",
    "greedy_right", "greedy_completion", "exact": {figure: number} or null}``; null where a value is undefined.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / EVALUATIONS_FILE
        self._lines: _LineFile | None = None

    def write_evaluation(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append one line for each row.

        Raises:
            NonFiniteError: a number is infinite; nothing is written.
            ValueError: the step is not beyond those already written.
        """
        lines = _record_lines("evaluation", step, rows)
        if self._lines is None:
            self._lines = _LineFile(self._path)
        self._lines.append(step, lines)

    def flush(self) -> None:
        """Flush and fsync."""
        if self._lines is not None:
            self._lines.sync()

    def close(self) -> None:
        """Flush, fsync and close."""
        if self._lines is not None:
            self._lines.close()

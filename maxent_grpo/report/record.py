"""Everything that a run left in its directory, as a report needs it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxent_grpo.errors import DataError
from maxent_grpo.report.environment import read_environment
from maxent_grpo.report.read import (
    CONFIG_FILE,
    LOG_FILE,
    OVERRIDES_FILE,
    RunIdentity,
    import_flags,
    metric_series,
    read_config,
    read_identity,
    read_metrics,
    read_modules,
    read_options,
)

STEP_RANGE = re.compile(r"steps \d+ to (\d+)\s*$")
EARLY_STOP = re.compile(r": early stop: (.*)$")
STOPPED = re.compile(r" ERROR\s+\S+: stopped: (.*)$")

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What run.log says of the last part of the run: the step it was to reach, and what ended it before."""

    total_steps: int | None
    early_stop: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run: its lines of metrics and its settings."""

    run_dir: Path
    identity: RunIdentity
    rows: Rows
    """Lines of metrics.jsonl, by step."""
    options: Mapping[str, str]
    """Chosen option of each configuration group."""
    config: Mapping[str, Any] | None
    """The resolved settings; None without a config.yaml."""
    overrides: Sequence[str] | None
    """The command line; None without an overrides.json."""
    log: LogFacts
    modules: Sequence[str] = ()
    """Modules that added options of the run."""
    environment: Mapping[str, Any] | None = None
    """Code, machine and command line; None without an environment.json."""

    @property
    def last_step(self) -> int:
        """The newest step with a line, 0 before the first."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def total_steps(self) -> int | None:
        """How many steps the run was to take, if its log or its settings tell."""
        if self.log.total_steps is not None:
            return self.log.total_steps
        total = self.setting("optimization.total_training_steps")
        return total if isinstance(total, int) and total > 0 else None

    @property
    def seconds(self) -> float:
        """Wall-clock time of all optimiser steps [seconds], over every part of a resumed run."""
        return sum(metric_series(self.rows, "time/step_seconds")[1])

    def setting(self, path: str) -> Any:
        """The setting at a dotted path, None where config.yaml has none."""
        value: Any = self.config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def read_record(run_dir: Path) -> RunRecord:
    """Read a run directory; what may be missing (configuration, command line, log) is None in the result.

    Raises:
        DataError: metrics.jsonl is missing, or a file is damaged.
    """
    rows = read_metrics(run_dir)
    configured = (run_dir / CONFIG_FILE).is_file()
    options = read_options(run_dir) if configured else {}
    config = read_config(run_dir) if configured else None
    return RunRecord(
        run_dir=run_dir,
        identity=read_identity(run_dir),
        rows=rows,
        options=options,
        modules=read_modules(run_dir) if configured else [],
        config=config,
        overrides=_read_overrides(run_dir / OVERRIDES_FILE),
        log=read_log(run_dir / LOG_FILE),
        environment=read_environment(run_dir),
    )


def status(record: RunRecord) -> tuple[bool, str]:
    """Whether the run came to its end, at its last step or by an early stop, and a sentence that says so."""
    total, done = record.total_steps, record.last_step
    if total is None:
        return False, f"{done} step{'' if done == 1 else 's'}; how many were planned is not recorded"
    if done >= total:
        return True, f"finished: {done} of {total} steps"
    if record.log.early_stop and not record.log.error:
        return True, f"stopped early: {done} of {total} steps ({record.log.early_stop})"
    reason = f" (stopped: {record.log.error})" if record.log.error else ""
    return False, f"unfinished: {done} of {total} steps{reason}"


def reproduce_command(overrides: Sequence[str], modules: Sequence[str]) -> str:
    """The shell command with the run's overrides, without the folder, which holds this run already.

    Args:
        overrides: the run's own.
        modules: those that added options of the run.
    """
    kept = [text for text in overrides if text.lstrip("+").partition("=")[0] != "run.dir"]
    flags = import_flags(modules)
    return shlex.join(["python", *(["-m", "maxent_grpo", *flags, "train"] if flags else ["train.py"]), *kept])


def _read_overrides(path: Path) -> list[str] | None:
    if not path.is_file():
        return None
    try:
        overrides = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}): move it away to report the rest of the run") from error
    if not isinstance(overrides, list):
        raise DataError(f"{path} holds {type(overrides).__name__}, not a list: move it away to report the rest")
    return [str(text) for text in overrides]


def read_log(path: Path) -> LogFacts:
    """The last planned range of steps, and the early stop or the error after it."""
    total = early_stop = error = None
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if found := STEP_RANGE.search(line):
                    total, early_stop, error = int(found.group(1)), None, None
                elif found := EARLY_STOP.search(line):
                    early_stop = found.group(1)
                elif found := STOPPED.search(line):
                    error = found.group(1)
    return LogFacts(total, early_stop, error)

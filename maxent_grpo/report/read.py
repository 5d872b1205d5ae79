"""Reading a run directory: line-by-line records, metric series, and what the run calls itself.

Reads files only; knows nothing of how they came to be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from maxent_grpo.errors import DataError

METRICS_FILE = "metrics.jsonl"
COMPLETIONS_FILE = "completions.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
RECORD_FILES = (METRICS_FILE, COMPLETIONS_FILE, EVALUATIONS_FILE)
"""The files of a run that grow line by line, each line with its step."""
CONFIG_FILE = "config.yaml"
CURVES_FILE = "curves.png"

OPTIONS_COMMENT = "# options:"
"""Start of the comment in config.yaml that names the chosen option of every group, as ``group=option`` words."""


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def iterate_jsonl(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Whole lines of a file with the object each holds; a last line without its newline was being written and is left out.

    Raises:
        DataError: a whole line does not hold one JSON object with finite numbers.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line, parse_constant=_refuse_constant)
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number} is not a JSON object ({error}): the file was changed by hand or damaged; "
                    "remove that line to read the rest"
                ) from error
            if not isinstance(value, dict):
                raise DataError(f"{path}, line {number} holds {type(value).__name__}, not a JSON object: remove it")
            yield line, value


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a line-by-line file, in order; tolerant of a half-written last line.

    Raises:
        DataError: the file does not exist, or a whole line is not a JSON object.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist: is {path.parent} the directory of a run that has started?")
    return [value for _, value in iterate_jsonl(path)]


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, ordered by step."""
    path = run_dir / METRICS_FILE
    rows = read_jsonl(path)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row.get("step"), int):
            raise DataError(f"{path}, record {number} has no whole-numbered step: it is not a record of metrics")
    return sorted(rows, key=lambda row: row["step"])


def metric_series(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, from the lines that have it."""
    present = [row for row in rows if name in row]
    return [int(row["step"]) for row in present], [float(row[name]) for row in present]


def evaluated_ks(rows: Sequence[Mapping[str, Any]], measure: str) -> list[int]:
    """The k of every ``eval/<measure>@k`` metric in the lines, ascending."""
    pattern = re.compile(rf"eval/{re.escape(measure)}@(\d+)")
    matches = (pattern.fullmatch(name) for row in rows for name in row)
    return sorted({int(match.group(1)) for match in matches if match})


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What a run calls itself: scoring option and seed where config.yaml tells them, and its folder's name."""

    method: str | None
    seed: int | None
    folder: str

    @property
    def label(self) -> str:
        """The scoring option, or the folder's name where it is unknown."""
        return self.method or self.folder


def read_identity(run_dir: Path) -> RunIdentity:
    """Method and seed from config.yaml; None for what it does not tell, or when there is no such file."""
    path = run_dir / CONFIG_FILE
    folder = run_dir.resolve().name
    if not path.is_file():
        return RunIdentity(None, None, folder)
    text = path.read_text(encoding="utf-8")
    options = next((line for line in text.splitlines() if line.startswith(OPTIONS_COMMENT)), "")
    chosen = dict(word.split("=", 1) for word in options.split() if "=" in word)
    config = OmegaConf.create(text)
    seed = config.get("seed") if isinstance(config, DictConfig) else None
    return RunIdentity(chosen.get("scoring"), seed if isinstance(seed, int) else None, folder)

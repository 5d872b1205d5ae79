"""Reading a run directory: line-by-line records, metric series, and what the run calls itself.

Reads files only; knows nothing of how they came to be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from maxent_grpo.errors import DataError
from maxent_grpo.report.line_checks import wrong_in

METRICS_FILE = "metrics.jsonl"
COMPLETIONS_FILE = "completions.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
EVALUATION_FILE = "evaluation.json"
EVALUATION_PICTURES = ("evaluation.png", "evaluation.svg")
RECORD_FILES = (METRICS_FILE, COMPLETIONS_FILE, EVALUATIONS_FILE)
"""The files of a run that grow line by line, each line with its step."""
CONFIG_FILE = "config.yaml"
VERSIONS_FILE = "versions.json"
ENVIRONMENT_FILE = "environment.json"
DIFF_FILE = "code.diff"
OVERRIDES_FILE = "overrides.json"
LOG_FILE = "run.log"
DATA_FILE = "data.json"
PAGE_FILE = "report.html"
PICTURE_FILE = "report.png"
COMPARISON_PAGE = "comparison.html"
SWEEP_FILE, SWEEP_TABLE, MULTIRUN_FILE = "sweep.json", "sweep.csv", "multirun.yaml"
"""In a sweep's folder: its jobs, a row for each, and what Hydra was told."""
DEEPEST = 2
"""Levels below a sweep's folder that a job's can be: hydra.sweep.subdir=a/b is two."""

OPTIONS_COMMENT = "# options:"
"""Start of the comment in config.yaml that names the chosen option of every group, as ``group=option`` words."""
MODULES_COMMENT = "# modules:"
"""Start of the comment that names the modules which added options that are not the package's own, for runs with such options."""
NOTEBOOK = "__main__"
"""In place of a module: an option was added by a session or notebook, which cannot be imported."""
IMPORT_FLAG = "--import"
"""Of `python -m maxent_grpo`, before the command, with a module that it is to import."""


def in_number_order(name: str) -> list[tuple[int, str]]:
    """Sort key by which numbers in names come in the order of their values: 2-b before 10-a."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run: it holds resolved settings."""
    return (folder / CONFIG_FILE).is_file()


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep."""
    return any((folder / name).is_file() for name in (SWEEP_FILE, SWEEP_TABLE, MULTIRUN_FILE))


def sweep_of(run: Path) -> Path | None:
    """The folder of the sweep that a run is a job of, at most ``DEEPEST`` above it; None for a run of its own."""
    return next((folder for folder in list(run.parents)[:DEEPEST] if is_sweep(folder)), None)


def runs_in(folder: Path) -> list[Path]:
    """The runs directly in a folder, and those at most ``DEEPEST`` below that of a sweep, in the order of the numbers in their names."""
    deepest = DEEPEST if is_sweep(folder) else 1
    found = [path for depth in range(1, deepest + 1) for path in folder.glob("/".join("*" * depth)) if is_run(path)]
    names = [path.relative_to(folder) for path in found if path.parent == folder or not is_run(path.parent)]
    shown = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    return [folder / name for name in sorted(shown, key=lambda name: in_number_order(str(name)))]


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def iterate_jsonl(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Whole lines of a file with the object each holds; a last line without its newline was being written and is left out.

    Raises:
        DataError: a whole line does not hold one JSON object, or one that is no record of its file: see ``line_checks``.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line, parse_constant=_refuse_constant)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {number} is not a JSON object ({error}): the file was changed by hand or damaged; "
                    "remove that line to read the rest"
                ) from error
            if not isinstance(value, dict):
                raise DataError(f"{path}, line {number} holds {type(value).__name__}, not a JSON object: remove it")
            reason = wrong_in(path.name, value)
            if reason is not None:
                raise DataError(
                    f"{path}, line {number}: {reason[:200]}: the file was changed by hand or damaged; remove that line to read the "
                    "rest"
                )
            yield line, value


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a line-by-line file, in order; tolerant of a half-written last line.

    Raises:
        DataError: the file does not exist, or a whole line is not a JSON object.
    """
    return [value for _, value in iterate_jsonl(_existing(path))]


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"{path} does not exist: is {path.parent} the directory of a run that has started?")
    return path


def iterate_metrics(run_dir: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's metrics.jsonl as they stand, one at a time.

    Names are the same objects in every line: those of a long run, each anew, would be most of what its lines take in memory.

    Raises:
        DataError: the file does not exist, or a line is no record of metrics.
    """
    path = _existing(run_dir / METRICS_FILE)
    for number, (_, row) in enumerate(iterate_jsonl(path), start=1):
        if not isinstance(row.get("step"), int):
            raise DataError(f"{path}, record {number} has no whole-numbered step: it is not a record of metrics")
        yield {intern(name): value for name, value in row.items()}


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, ordered by step."""
    return sorted(iterate_metrics(run_dir), key=lambda row: row["step"])


def metric_series(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, from the lines that have it."""
    present = [row for row in rows if name in row]
    return [int(row["step"]) for row in present], [float(row[name]) for row in present]


def evaluated_ks(rows: Sequence[Mapping[str, Any]], measure: str) -> list[int]:
    """The k of every ``eval/<measure>@k`` metric in the lines, ascending."""
    pattern = re.compile(rf"eval/{re.escape(measure)}@(\d+)")
    matches = (pattern.fullmatch(name) for row in rows for name in row)
    return sorted({int(match.group(1)) for match in matches if match})


def headline_measures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Evaluation measures to show: pass@ the smallest and largest k, and coverage@ the largest."""
    pass_ks, coverage_ks = evaluated_ks(rows, "pass"), evaluated_ks(rows, "coverage")
    names = [f"pass@{k}" for k in sorted({*pass_ks[:1], *pass_ks[-1:]})]
    return names + [f"coverage@{k}" for k in coverage_ks[-1:]]


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


def read_options(run_dir: Path) -> dict[str, str]:
    """Group to chosen option, from the comment that heads config.yaml; empty where it does not tell.

    Raises:
        DataError: there is no config.yaml.
    """
    return dict(word.split("=", 1) for word in _comment(run_dir, OPTIONS_COMMENT) if "=" in word)


def read_modules(run_dir: Path) -> list[str]:
    """The modules that added options of the run which are not the package's own; empty for a run without such options.

    Raises:
        DataError: there is no config.yaml.
    """
    return _comment(run_dir, MODULES_COMMENT)


def import_flags(names: Iterable[str]) -> list[str]:
    """The words of a command line by which a command imports those modules that can be imported."""
    return [word for name in names if name != NOTEBOOK for word in (IMPORT_FLAG, name)]


def _comment(run_dir: Path, start: str) -> list[str]:
    """The words of one of the comments that head config.yaml."""
    lines = _config_text(run_dir).splitlines()
    return next((line for line in lines if line.startswith(start)), start).removeprefix(start).split()


def read_config(run_dir: Path) -> dict[str, Any]:
    """A run's settings as nested plain values, from config.yaml.

    Raises:
        DataError: there is no config.yaml, or it does not hold settings.
    """
    try:
        config = OmegaConf.create(_config_text(run_dir))
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise DataError(f"{run_dir / CONFIG_FILE} cannot be read ({str(error).splitlines()[0]})") from error
    content = OmegaConf.to_container(config)
    if not isinstance(content, dict):
        raise DataError(f"{run_dir / CONFIG_FILE} holds a list, not settings")
    return {str(name): value for name, value in content.items()}


def read_versions(run_dir: Path) -> dict[str, str] | None:
    """What the run was made with, by name; None for a run that does not record it.

    Raises:
        DataError: versions.json is not an object of texts.
    """
    path = run_dir / VERSIONS_FILE
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise DataError(f"{path} is not a JSON object of versions: it was changed by hand or damaged; delete it")
    return value


def read_identity(run_dir: Path) -> RunIdentity:
    """Method and seed from config.yaml; None for what it does not tell, or when there is no such file."""
    folder = run_dir.resolve().name
    if not (run_dir / CONFIG_FILE).is_file():
        return RunIdentity(None, None, folder)
    seed = read_config(run_dir).get("seed")
    return RunIdentity(read_options(run_dir).get("scoring"), seed if isinstance(seed, int) else None, folder)


def _config_text(run_dir: Path) -> str:
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise DataError(f"{path} does not exist: is {run_dir} the directory of a run that has started?")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text ({error}): it was changed by hand or damaged") from error

"""What an evaluation shows on the terminal: a bar while problems are asked, and the table of its result."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from maxent_grpo.commands.terminal_table import show_table
from maxent_grpo.telemetry.progress import format_duration
from maxent_grpo.training.evaluation_plan import Subject

SECONDS_BETWEEN_LINES = 5.0
ONLY_RECORDED = ("exact/within/", "exact/sampled/", "exact/distinct@", "exact/mode_")
"""Beginnings of figures that evaluation.json holds and the table leaves out."""


class AskedProblems:
    """Shows on standard error how many problems are answered: a bar with the time left on a terminal, else a line now and then."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("problems"),
            TimeElapsedColumn(), TextColumn("eta"), TimeRemainingColumn(),
            console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._is_terminal = console.is_terminal
        self._bar = self._progress.add_task("", total=None, visible=False)
        self._label, self._done, self._total = "", 0, 0
        self._started = self._shown = time.monotonic()

    def __enter__(self) -> AskedProblems:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def start(self, subject: Subject, total: int) -> None:
        """The next model begins."""
        self._label, self._done, self._total = subject.label, 0, total
        self._started = self._shown = time.monotonic()
        self._bar = self._progress.add_task(subject.label, total=total)

    def answered(self, num: int) -> None:
        """So many more problems are answered."""
        self._done += num
        self._progress.advance(self._bar, num)
        now = time.monotonic()
        if not self._is_terminal and now - self._shown >= SECONDS_BETWEEN_LINES:
            self._shown = now
            left = (now - self._started) / self._done * (self._total - self._done)
            print(
                f"{self._label}: {self._done} of {self._total} problems, eta {format_duration(left)}", file=sys.stderr
            )


def show_result(result: Mapping[str, Any], written: Sequence[Path]) -> None:
    """Print the tables and name the files."""
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    models: Sequence[Mapping[str, Any]] = result["models"]
    sampling = result["sampling"]
    for line in _lines(models):
        print(line)
    names = list(dict.fromkeys(name for model in models for name in model["figures"]))
    heads = ["", *(str(model["label"]) for model in models)]
    rows = [[name, *(_cell(model["figures"].get(name)) for model in models)] for name in names]
    others = dict.fromkeys(name for model in models for name in model["others"])
    extra = [name for name in others if not name.startswith(ONLY_RECORDED)]
    rows += [[name, *(_plain(model["others"].get(name)) for model in models)] for name in extra]
    title = (
        f"{result['data']}, {result['num_samples']} samples a problem at temperature {sampling['temperature']:g}, "
        f"{result['interval']['level']:.0%} intervals over problems"
    )
    show_table(console, heads, rows, title)
    for comparison in result["comparisons"]:
        _show_comparison(console, comparison)
    print()
    for path in written:
        print(f"wrote {path}")


def _lines(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was left out, and what else there is to know of a model."""
    lines: list[str] = []
    for model in models:
        dropped = f", {model['dropped_rows']} left out for the length of their prompts" if model["dropped_rows"] else ""
        without = f", {model['abstained']} samples without a reward" if model["abstained"] else ""
        lines.append(f"{model['label']}: {model['source']}, {model['rows']} problems{dropped}{without}")
        lines += [f"  {note}" for note in model["notes"]]
    return lines


def _show_comparison(console: Console, comparison: Mapping[str, Any]) -> None:
    left_out = f", {comparison['left_out']} that only one answered left out" if comparison["left_out"] else ""
    rows = [
        [name, f"{found['difference']:+.4f}", _range(found), _chance(found["p"]), _test(found)]
        for name, found in comparison["figures"].items()
    ]
    title = f"{comparison['model']} minus {comparison['against']}, {comparison['rows']} problems{left_out}"
    show_table(console, ["", "difference", "interval", "p", "test"], rows, title)


def _test(found: Mapping[str, Any]) -> str:
    if "only_model_right" not in found:
        return str(found["test"])
    return f"{found['test']}: {found['only_model_right']} won, {found['only_against_right']} lost"


def _cell(figure: Mapping[str, float | None] | None) -> str:
    return "-" if figure is None else f"{figure['mean']:.4g}  {_range(figure)}"


def _range(figure: Mapping[str, float | None]) -> str:
    low, high = figure["low"], figure["high"]
    return "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _chance(p: float | None) -> str:
    return "-" if p is None else f"{p:.2g}"

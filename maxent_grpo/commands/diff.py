"""`python -m maxent_grpo diff`: two runs side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from maxent_grpo.commands.run_argument import require_run
from maxent_grpo.commands.terminal_table import show_table
from maxent_grpo.config.declared import shown
from maxent_grpo.errors import DataError
from maxent_grpo.report.difference import (
    Change,
    Outcome,
    Parting,
    changed_settings,
    changed_versions,
    outcomes,
    parting,
)
from maxent_grpo.report.read import read_metrics
from maxent_grpo.training.metric_table import UNREPRODUCED

DESCRIPTION = """\
Compare two runs: the settings that differ, the package versions that differ, the newest value of each headline metric and
evaluation with the difference, and the first step at which their metrics are not equal bit for bit. Times, throughput and
memory, which measure the machine, are left out."""

EPILOG = """\
example:
  python -m maxent_grpo diff outputs/DAY/TIME outputs/DAY/OTHER
  python -m maxent_grpo diff --all RUN_A RUN_B | less

exit status: 0 compared, whether or not the runs differ; 2 a folder is not a run."""


def main(arguments: list[str]) -> None:
    """Print the comparison; exits with status 2 when a folder is not a run directory."""
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo diff",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("left", type=Path, metavar="RUN_A", help="a run directory")
    parser.add_argument("right", type=Path, metavar="RUN_B", help="another one")
    parser.add_argument("--all", action="store_true", help="every metric, not only the headline ones")
    options = parser.parse_args(arguments)
    runs = (options.left, options.right)
    for run in runs:
        require_run(parser, run)
    try:
        _print_difference(*runs, every=options.all)
    except DataError as error:
        parser.exit(2, f"diff: {error}\n")


def _print_difference(left: Path, right: Path, *, every: bool) -> None:
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    print(f"A  {left}\nB  {right}")
    settings = changed_settings(left, right)
    _show(console, ("settings", "A", "B"), [_texts(change) for change in settings], "no setting differs")
    versions = changed_versions(left, right)
    if versions is None:
        print("\nversions: not recorded by both runs")
    else:
        _show(console, ("versions", "A", "B"), [_texts(change) for change in versions], "")
    ends = outcomes(left, right, ignored=UNREPRODUCED, every=every)
    sides = [each.left for each in ends], [each.right for each in ends]
    steps = [max((each[0] for each in side if each), default=0) for side in sides]
    heads = ("newest values", *(f"{run}, step {step}" for run, step in zip("AB", steps, strict=True)), "B - A")
    _show(console, heads, [_numbers(each, steps) for each in ends], "no metrics")
    rows = read_metrics(left), read_metrics(right)
    print(f"\n{_sentence(parting(*rows, ignored=UNREPRODUCED))}")


def _texts(change: Change) -> tuple[str, ...]:
    return (change.key, _text(change.left), _text(change.right))


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return shown(value)


def _numbers(outcome: Outcome, steps: Sequence[int]) -> tuple[str, ...]:
    """Values to five digits; the step is named where it is not the run's last."""
    cells = [outcome.name]
    for side, last in zip((outcome.left, outcome.right), steps, strict=True):
        where = "" if side is None or side[0] == last else f" (step {side[0]})"
        cells.append("-" if side is None else f"{side[1]:.5g}{where}")
    return (*cells, "" if outcome.difference is None else f"{outcome.difference:+.3g}")


def _sentence(found: Parting) -> str:
    if found.first is None:
        return "no step in common" if found.identical_to is None else f"identical up to step {found.identical_to}"
    more = f" and {len(found.names) - 4} more" if len(found.names) > 4 else ""
    names = f"{', '.join(found.names[:4])}{more}"
    before = "" if found.identical_to is None else f"identical up to step {found.identical_to}; "
    return f"{before}different from step {found.first} on: {names}"


def _show(console: Console, heads: tuple[str, ...], rows: list[tuple[str, ...]], none: str) -> None:
    """A table, or what is said where it has no rows."""
    if rows:
        show_table(console, heads, rows)
    elif none:
        print(f"\n{none}")

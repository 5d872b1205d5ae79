"""`python -m benchmarks`: list what can be measured, measure it, print the ratios, compare them with earlier ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.catalogue import Catalogue, Form, Measurement
from benchmarks.figure import draw_growth
from benchmarks.machine import kind, machine
from benchmarks.results import Results, compared, markdown, quoted, read, results, target_rows, worse, write
from benchmarks.schedule import Store, measure, planned
from benchmarks.targets import targets_of

KEPT = Path("outputs/benchmarks")
"""Samples, models and prompts."""
RESULTS = Path("benchmarks/results")
README = Path("README.md")
COLUMNS = ("work", "compared", "ours", "peer", "ratio", "target", "")


class Display:
    """A bar on a terminal, a line for each process elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self.task = self.progress.add_task("", total=total)
        self.total, self.number = total, 0

    def begin(self, label: str) -> None:
        self.progress.update(self.task, description=label)

    def done(self, label: str, seconds: float | None) -> None:
        self.number += 1
        self.progress.advance(self.task)
        if not self.console.is_terminal:
            cost = "kept, or left out" if seconds is None else f"{seconds:.3g} CPU s in its last lap"
            print(f"[{self.number}/{self.total}] {label}: {cost}", flush=True)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)


def main(arguments: list[str]) -> int:
    """The exit status: 0, 1 when something could not be measured or a ratio fell, 2 for a wrong command line."""
    asked = _parser().parse_args(arguments)
    form = Form.quick if asked.quick else Form.full if asked.full else Form.standard
    if asked.readme and (asked.only or form is Form.quick):
        print(
            "python -m benchmarks: README.md quotes the whole table: leave out --only and --quick, or --readme",
            file=sys.stderr,
        )
        return 2
    console = Console()
    if asked.old is not None and asked.new is not None:
        return _compare(read(asked.old), read(asked.new), console)
    try:
        chosen = Catalogue().chosen(form, asked.only)
    except ValueError as error:
        print(f"python -m benchmarks: {error}", file=sys.stderr)
        return 2
    if asked.list:
        _list(chosen, form, console)
        return 0
    described = machine()
    stem = RESULTS / (kind(described) + ("" if form is Form.standard else f"-{form}"))
    store = Store(KEPT / stem.name)
    display = Display(console, planned(chosen, form))
    with display.progress:
        outcomes = measure(chosen, form, store, display, fresh=asked.fresh)
    found = results(outcomes, described, form)
    _print(found, console)
    output = asked.output or (None if asked.only or form is Form.quick else stem)
    if output is not None:
        write(found, output)
        draw_growth(found, Path(f"{output}-growth.png"))
        console.print(f"written: {output}.json, {output}.md", markup=False, highlight=False)
    if asked.readme:
        README.write_text(quoted(README.read_text(encoding="utf-8"), markdown(found)), encoding="utf-8")
    status = int(any(outcome.failed for outcome in outcomes))
    if asked.old is not None:
        status = max(status, _compare(read(asked.old), found, console))
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time and memory of this package and of TRL, transformers' generate and vLLM on the same work. "
        "Finished measurements are kept in outputs/benchmarks and not made again.",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quick", action="store_true", help="about a minute: two small steps and the head, once")
    form.add_argument("--full", action="store_true", help="more repetitions, and the growth of TRL's step as well")
    parser.add_argument("--list", action="store_true", help="say what would be measured, with its targets, and stop")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="measurements whose names begin so; writes no files"
    )
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")
    parser.add_argument("--readme", action="store_true", help="quote the table in README.md")
    parser.add_argument("--output", type=Path, metavar="STEM", help="write STEM.json, STEM.md and STEM-growth.png")
    parser.add_argument(
        "--compare", dest="old", type=Path, metavar="OLD.json",
        help="exit with 1 when a target's ratio is more than 10%% lower than in OLD.json",
    )  # fmt: skip
    parser.add_argument(
        "--with", dest="new", type=Path, metavar="NEW.json", help="with --compare: measure nothing, read NEW.json"
    )
    return parser


def _list(chosen: list[Measurement], form: Form, console: Console) -> None:
    table = Table("measurement", "about", "processes", "targets")
    for measurement in chosen:
        plans = ", ".join(f"{side} {plan.rounds} x {plan.laps}" for side, plan in measurement.plans[form].items())
        aims = ", ".join(f"{t.quantity} {t.peer} >= {t.at_least:.3g}" for t in targets_of(measurement.name))
        table.add_row(measurement.name, measurement.about, plans, aims)
    console.print(table)


def _print(found: Results, console: Console) -> None:
    table = Table(*COLUMNS, title="peer / ours, more is better")
    for row in target_rows(found):
        table.add_row(*(cell.replace("**", "") for cell in row))
    if console.is_terminal:
        console.print(table)
    else:
        print(markdown(found), flush=True)


def _compare(old: Results, new: Results, console: Console) -> int:
    if not compared(old, new):
        console.print("nothing to compare: the two share no target", markup=False)
        return 1
    if old["machine"] != new["machine"]:
        console.print("note: made on different machines or with different versions", markup=False)
    fallen = worse(old, new)
    for sentence in fallen:
        console.print(f"worse: {sentence}", markup=False, highlight=False)
    if not fallen:
        console.print(f"none of {compared(old, new)} ratios fell by more than 10 %", markup=False, highlight=False)
    return int(bool(fallen))

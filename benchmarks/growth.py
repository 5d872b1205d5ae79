"""`python -m benchmarks.growth`: how time and memory grow with tokens a step, group size, data, run length and processes."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.catalogue import OURS, Form, Measurement, Plan
from benchmarks.cli import KEPT, README, RESULTS, Display
from benchmarks.machine import kind, machine
from benchmarks.results import MIB, quoted
from benchmarks.schedule import Outcome, Sample, Store, measure, planned

BEGIN, END = "<!-- growth: begin -->", "<!-- growth: end -->"
"""What the quoted table stands between."""
MANY = 8
AT_ONCE = 16
"""Completions sampled at once where sampling is bounded as well; those of the smallest step."""
Found = Mapping[str, Sample]
"""Measurement -> the sample of its process."""


def _one(name: str, kind: str, about: str, laps: int = 1, **work: Any) -> Measurement:
    return Measurement(name, kind, about, work, {Form.standard: {OURS: Plan(1, laps)}})


MEASUREMENTS = (
    _one("step", "step", "2 prompts, G = 8", laps=5),
    _one("step-tokens", "step", "16 prompts, G = 8", laps=4, prompts=2 * MANY),
    _one("step-tokens-limited", "step", "the same, 16 sampled at once", laps=4, prompts=2 * MANY, at_once=AT_ONCE),
    _one("step-group", "step", "2 prompts, G = 64", laps=4, group=8 * MANY),
    _one("step-group-limited", "step", "the same, 16 sampled at once", laps=4, group=8 * MANY, at_once=AT_ONCE),
    _one("rows-jsonl", "run", "1,000 rows of a jsonl file", rows=1_000),
    _one("rows-jsonl-many", "run", "1,000,000 rows of a jsonl file", rows=1_000_000),
    _one("rows-parquet", "run", "1,000 rows of a parquet file", rows=1_000, table="parquet"),
    _one("rows-parquet-many", "run", "1,000,000 rows of a parquet file", rows=1_000_000, table="parquet"),
    _one("length", "run", "10 steps", steps=10),
    _one("length-many", "run", "10,000 steps", steps=10_000),
    _one("processes", "launch", "1 process", processes=1),
    _one("processes-many", "launch", "2 processes, the same batch", processes=2),
)


def _step_seconds(sample: Sample) -> float:
    return statistics.median(sample["seconds"][sample["drop"] :])


def _above_base(sample: Sample) -> float:
    return (sample["peak"] - sample["base"]) / MIB


def _named(name: str) -> Callable[[Sample], float]:
    return lambda sample: sample[name]


def _mib(name: str) -> Callable[[Sample], float]:
    return lambda sample: sample[name] / MIB


def _record_bytes(sample: Sample) -> float:
    return sum(sample["bytes"][name] for name in ("metrics.jsonl", "completions.jsonl")) / MIB


Row = tuple[str, str, str, Callable[[Sample], float], str, Callable[[Sample], float], str]
"""What grows; the quantity; where and how the smaller is read; where and how the larger is read; its unit."""
STEP, MEMORY = "CPU time of a step", "memory above the start"


def _step_rows(grows: str, large: str) -> list[Row]:
    """Time and memory of the small step and of a larger one."""
    return [
        (grows, STEP, "step", _step_seconds, large, _step_seconds, "s"),
        (grows, MEMORY, "step", _above_base, large, _above_base, "MiB"),
    ]


ROWS: tuple[Row, ...] = (
    *_step_rows(f"tokens of a step × {MANY}", "step-tokens"),
    *_step_rows(f"tokens of a step × {MANY}, {AT_ONCE} sampled at once", "step-tokens-limited"),
    *_step_rows(f"group size × {MANY}", "step-group"),
    *_step_rows(f"group size × {MANY}, {AT_ONCE} sampled at once", "step-group-limited"),
    *(
        (f"rows of a {table} file × 1,000", what, f"rows-{table}", read, f"rows-{table}-many", read, unit)
        for table in ("jsonl", "parquet")
        for what, read, unit in (
            ("CPU time before the first step", _named("start_seconds"), "s"),
            (STEP, _step_seconds, "s"),
            ("peak memory", _mib("peak"), "MiB"),
        )
    ),
    ("steps × 1,000", "CPU time of a step", "length", _step_seconds, "length-many", _step_seconds, "s"),
    ("steps 1,000 to 10,000", "CPU time of a step", "length-many", _named("first_seconds"), "length-many", _named("last_seconds"), "s"),
    ("steps 1,000 to 10,000", "time to record a step", "length-many", _named("first_log_seconds"), "length-many", _named("last_log_seconds"), "s"),
    ("steps 1,000 to 10,000", "resident memory", "length-many", _mib("resident_tenth"), "length-many", _mib("resident_end"), "MiB"),
    ("steps × 1,000", "peak memory, report included", "length", _mib("peak"), "length-many", _mib("peak"), "MiB"),
    ("steps × 1,000", "metrics and completions", "length", _record_bytes, "length-many", _record_bytes, "MiB"),
    ("steps × 1,000", "last checkpoint and report", "length", _named("end_seconds"), "length-many", _named("end_seconds"), "s"),
    ("processes 1 to 2, one batch", "wall time of a step", "processes", _step_seconds, "processes-many", _step_seconds, "s"),
    ("processes 1 to 2, one batch", "peak memory of the main process", "processes", _mib("peak"), "processes-many", _mib("peak"), "MiB"),
)  # fmt: skip


def markdown(results: Mapping[str, Any]) -> str:
    """The table, as README quotes it."""
    described, found, notes = results["machine"], results["samples"], results["notes"]
    lines = [
        f"{described['processor']}, one thread of {described['cores']} cores for each process; torch {described.get('torch')}.",
        "",
        "| what grows | quantity | before | after | times |",
        "|---|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in rows(found)),
    ]
    lines += ["", *(f"- {name}: {why.splitlines()[-1]}" for name, why in sorted(notes.items()))] if notes else []
    return "\n".join(lines) + "\n"


def rows(found: Found) -> Iterable[tuple[str, ...]]:
    """A row for each quantity of which both ends were measured."""
    for grows, what, small, read_small, large, read_large, unit in ROWS:
        if small in found and large in found:
            before, after = read_small(found[small]), read_large(found[large])
            yield grows, what, _shown(before, unit), _shown(after, unit), f"{after / before:,.2f}"


def _shown(value: float, unit: str) -> str:
    if unit == "s" and value < 0.1:
        return f"{1000 * value:.3g} ms"
    return f"{value:,.1f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def results_of(outcomes: Iterable[Outcome], described: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is written as JSON."""
    known = list(outcomes)
    return {
        "machine": dict(described),
        "samples": {
            outcome.measurement.name: {k: v for k, v in outcome.samples[OURS][0].items() if k not in ("first", "steps")}
            for outcome in known
            if OURS in outcome.samples
        },
        "notes": {outcome.measurement.name: outcome.notes[OURS] for outcome in known if OURS in outcome.notes},
    }


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0, 1 when something could not be measured, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth",
        description="How time and memory grow with tokens a step, group size, rows, steps and processes. Finished "
        "measurements are kept in outputs/benchmarks and not made again.",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="measurements whose names begin so; writes no files"
    )
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")
    parser.add_argument("--readme", action="store_true", help="quote the table in README.md")
    asked = parser.parse_args(list(arguments))
    chosen = [m for m in MEASUREMENTS if not asked.only or any(m.name.startswith(name) for name in asked.only)]
    if not chosen or (asked.readme and asked.only):
        parser.error("--only names no measurement: " + ", ".join(m.name for m in MEASUREMENTS) if not chosen else
                     "README.md quotes the whole table: leave out --only or --readme")  # fmt: skip
    console, described = Console(), machine()
    stem = RESULTS / f"{kind(described)}-growth"
    display = Display(console, planned(chosen, Form.standard))
    with display.progress:
        outcomes = measure(chosen, Form.standard, Store(KEPT / stem.name), display, fresh=asked.fresh)
    results = results_of(outcomes, described)
    table = markdown(results)
    print(table, flush=True)
    if not asked.only:
        write(results, stem)
        console.print(f"written: {stem}.json, {stem}.md", markup=False, highlight=False)
    if asked.readme:
        README.write_text(quoted(README.read_text(encoding="utf-8"), table, BEGIN, END), encoding="utf-8")
    return int(any(outcome.failed for outcome in outcomes))


def write(results: Mapping[str, Any], stem: Path) -> None:
    """JSON and Markdown beside each other."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{stem}.json").write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    Path(f"{stem}.md").write_text(markdown(results), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

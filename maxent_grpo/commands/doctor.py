"""`python -m maxent_grpo doctor`: what is installed, what the machine has, and what stands in the way of a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from maxent_grpo.commands.machine import Diagnosis, diagnose


def main(arguments: list[str]) -> None:
    """Look at this machine and print what was found; exit status 1 when a run could not be made here."""
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo doctor",
        description="Say what is installed, which cores, memory, disk and GPUs a run would have, how fast matrices are "
        "multiplied, and what stands in the way, with what to do about it. Takes a few seconds and uses no "
        "network; the speeds are kept in outputs/.cache/matmul_peaks.json, with which runs compare their own.",
        epilog="exit status: 0, or 1 when something that every run needs is missing; remarks do not count",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output, for programs")
    options = parser.parse_args(arguments)
    # as a run sets it, read when torch loads: threads that spin at a barrier would measure the other programs here
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    found = diagnose(say=lambda line: print(line, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps(asdict(found), indent=1))
    else:
        _show(found)
    if any(problem.blocks for problem in found.problems):
        sys.exit(1)


UNITS = {"memory_gib": "memory [GiB]", "disk_gib": "disk [GiB]", "matmul_gflops": "matrix products [GFLOP/s]"}


def _label(name: str) -> str:
    """A key as people read it; names of environment variables stay as they are."""
    return UNITS.get(name) or (name if name.isupper() else name.replace("_", " "))


def _show(found: Diagnosis) -> None:
    """A table for each part on a terminal; aligned lines where the output is piped."""
    sections = asdict(found)
    problems = found.problems
    del sections["problems"]
    if sys.stdout.isatty():
        _show_tables(sections)
    else:
        for title, rows in sections.items():
            print(_label(title))
            width = max((len(name) for name in rows), default=0)
            for name, value in rows.items():
                print(f"  {_label(name):<{width}}  {_text(value)}".rstrip())
            print()
    if not problems:
        print("no problems found")
        return
    print(f"{len(problems)} {'remark' if len(problems) == 1 else 'remarks'}:")
    for problem in problems:
        print(f"  - {'needed: ' if problem.blocks else ''}{problem.what}; {problem.remedy}")


def _show_tables(sections: dict[str, dict[str, object]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for title, rows in sections.items():
        table = Table(title=_label(title), title_justify="left", show_header=False, expand=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows.items():
            table.add_row(escape(_label(name)), escape(_text(value)))
        console.print(table)


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(_text, value)) or "none"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)

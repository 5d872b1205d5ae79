"""`python -m maxent_grpo sweep-table`: the table of a sweep, running, interrupted or done."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from maxent_grpo.commands.terminal_table import show_table
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.sweeps.record import read_jobs
from maxent_grpo.sweeps.table import sweep_tables, write_table


def main(arguments: list[str]) -> None:
    """Write sweep.csv anew and print the tables; exits with status 2 when the folder holds no sweep."""
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo sweep-table",
        description="Write a sweep's sweep.csv anew from its jobs' folders, and print it: every job with its swept settings, "
        "status, steps, time and headline figures, then the mean over seeds of each arm.",
    )
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="a sweep's folder, as named by hydra.sweep.dir")
    options = parser.parse_args(arguments)
    try:
        if not read_jobs(options.sweep):
            parser.exit(2, f"sweep-table: {options.sweep} is not the folder of a sweep\n")
        path = write_table(options.sweep)
        show_sweep(options.sweep)
    except (ConfigError, DataError) as error:
        parser.exit(2, f"sweep-table: {error}\n")
    print(f"\nwrote {path}")


def show_sweep(folder: Path) -> None:
    """Print the tables of a sweep."""
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for title, heads, rows in sweep_tables(folder):
        show_table(console, heads, rows, title)

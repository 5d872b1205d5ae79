"""`python -m maxent_grpo compare`: several runs in one figure."""

from __future__ import annotations

import argparse
from pathlib import Path

from maxent_grpo.errors import DataError
from maxent_grpo.report.read import METRICS_FILE

FORMATS = (".png", ".svg")
"""What a picture can be written as."""


def main(arguments: list[str]) -> None:
    """Draw the runs over each other and print the file's name.

    Exits with status 2 when a folder is not a run directory.
    """
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo compare",
        description="Draw the held-out figures, reward and entropy of several runs against the step, over each other. Runs of "
        "one method are seeds of one curve. `report` with several runs adds intervals, tests and what differs.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories")
    parser.add_argument("--labels", nargs="+", help="a label for each run (default: its method)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("comparison.png"),
        help="picture to write, .png or .svg (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    strangers = [str(run) for run in options.runs if not (run / METRICS_FILE).is_file()]
    if strangers:
        parser.error(f"not a run directory (no {METRICS_FILE}): {', '.join(strangers)}")
    if options.labels is not None and len(options.labels) != len(options.runs):
        parser.error(f"{len(options.labels)} labels for {len(options.runs)} runs")
    if options.output.suffix not in FORMATS:
        parser.error(f"--output {options.output}: its name has to end in {' or '.join(FORMATS)}")
    # matplotlib takes about a second to load, which a usage error need not wait for
    from maxent_grpo.report.picture import draw_comparison

    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        print(f"wrote {draw_comparison(options.runs, options.output, options.labels)}")
    except (DataError, OSError) as error:
        parser.error(str(error))

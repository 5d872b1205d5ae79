"""`python -m maxent_grpo report`: the report of a run, finished or not."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path

from maxent_grpo.errors import DataError
from maxent_grpo.report.read import METRICS_FILE, PAGE_FILE, PICTURE_FILE

DESCRIPTION = """\
Write report.html and report.png of a run from the files in its directory.

A run writes both by itself when it ends. This makes them for a run that is still going on, that was killed, or that ran with
logging.report=false. Nothing but the two files is changed, and an old pair is replaced.

report.html is one self-contained page: held-out figures over training and against the number of samples, reward,
lengths, entropy, group weights, KL, clip fractions, controller, losses, time and tokens, sample completions with rewards
and weights, and the configuration. It makes no network request and can be sent as it is."""

EPILOG = """\
examples:
  python -m maxent_grpo report outputs/DAY/TIME            into the run's own folder
  python -m maxent_grpo report outputs/DAY/TIME --open     and open the page in the browser
  python -m maxent_grpo report outputs/readme/*/           one report for each run of a sweep
  python -m maxent_grpo report RUN [RUN ...] --output DIR  into DIR, or DIR/<run's folder> for several runs

`python -m maxent_grpo compare` draws several runs over each other."""


def main(arguments: list[str]) -> None:
    """Write the reports and print their paths.

    Exits with status 2 and one message when a folder is not a run directory, or a file in it is damaged.
    """
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo report",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write into (default: each run's own)")
    parser.add_argument("--open", action="store_true", help="open the pages in the default browser")
    options = parser.parse_args(arguments)
    try:
        folders = _folders(options.runs, options.output)
        for run, folder in zip(options.runs, folders, strict=True):
            _write(run, folder, is_opened=options.open)
    except DataError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        sys.exit(2)


def _folders(runs: list[Path], output: Path | None) -> list[Path]:
    """Where each report goes; all runs are looked at before the first report is written."""
    for run in runs:
        if not run.is_dir():
            raise DataError(f"{run} is not a folder: name the directory of a run, such as outputs/DAY/TIME")
        if not (run / METRICS_FILE).is_file():
            raise DataError(
                f"{run} is not the directory of a run that has started: it has no {METRICS_FILE}, which a report is made from"
            )
    if output is None:
        return list(runs)
    if len(runs) == 1:
        return [output]
    names = [run.resolve().name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"several runs are in folders called {', '.join(twice)}, so their reports would replace each other in {output}: "
            "report them one at a time"
        )
    return [output / name for name in names]


def _write(run: Path, folder: Path, *, is_opened: bool) -> None:
    # matplotlib takes about a second to load, which a usage error need not wait for
    from maxent_grpo.report.page import write_page
    from maxent_grpo.report.picture import draw_picture

    try:
        folder.mkdir(parents=True, exist_ok=True)
        page, picture = write_page(run, folder), draw_picture(run, folder)
    except OSError as error:
        raise DataError(
            f"{PAGE_FILE} and {PICTURE_FILE} of {run} cannot be written into {folder} ({error}): choose a folder you can write "
            "to with --output"
        ) from error
    print(f"wrote {page}")
    print(f"wrote {picture}")
    if is_opened and not webbrowser.open(page.resolve().as_uri()):
        print(f"no browser could be started: open {page} yourself", file=sys.stderr)

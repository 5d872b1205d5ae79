"""`python -m maxent_grpo report`: the report of a run, several runs against each other, or the table of all."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from glob import glob, has_magic
from pathlib import Path

from maxent_grpo.config.complain import complain
from maxent_grpo.errors import DataError
from maxent_grpo.report.read import METRICS_FILE, in_number_order, is_run, runs_in

DESCRIPTION = """\
Write a self-contained page, and a picture, of one run, of several runs against each other, or of all runs in a folder. None
makes a network request, and each can be sent as it is.

One run: report.html and report.png in its own folder. A run writes both by itself when it ends; this makes them for a run that
is still going on, that was killed, or that ran with logging.report=false.

Several runs, the folder of a sweep, or a pattern: comparison.html and comparison.png. Runs whose settings differ in the seed
alone are one arm. Learning curves with a band over seeds, final figures with 95 % intervals, each arm against the baseline seed
by seed with tests, completions beside each other, and the settings that differ (docs/compare.md).

--all: index.html, a table of every run below a folder that can be sorted and filtered.

Only these files are written, and old ones are replaced."""

EPILOG = """\
examples:
  python -m maxent_grpo report outputs/DAY/TIME                    one run
  python -m maxent_grpo report outputs/DAY/TIME-sweep              the arms of a sweep against each other
  python -m maxent_grpo report A B C D --baseline dr_grpo          with a part of the baseline's name
  python -m maxent_grpo report 'outputs/readme/*' --x tokens       curves against tokens
  python -m maxent_grpo report outputs/readme/*/ --each            a report of each run, in its own folder
  python -m maxent_grpo report --all                               outputs/index.html

exit status: 0 written; 2 a folder is not that of a run, or a file in it is damaged."""

OUTPUTS = Path("outputs")


def main(arguments: list[str]) -> None:
    """Write the pages and print their paths.

    Exits with status 2 and one message when a folder is not a run directory, or a file in it is damaged.
    """
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo report",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run directories, folders of sweeps, patterns")
    parser.add_argument("--each", action="store_true", help="a report of each run instead of one comparison")
    parser.add_argument("--all", action="store_true", help=f"a table of all runs below RUN (default: {OUTPUTS})")
    parser.add_argument(
        "--baseline", metavar="ARM", help="the arm that others are compared with, or a part of its name"
    )
    parser.add_argument(
        "--x",
        choices=("steps", "tokens", "seconds"),
        default="steps",
        help="horizontal axis of curves (default: steps)",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write into (default: that of the runs)")
    parser.add_argument("--open", action="store_true", help="open the pages in the default browser")
    options = parser.parse_args(arguments)
    if not options.runs and not options.all:
        parser.error("name a run, the folder of a sweep, or --all")
    try:
        for page in _pages(options):
            if options.open and not webbrowser.open(page.resolve().as_uri()):
                complain(parser.prog, f"no browser could be started: open {page} yourself")
    except DataError as error:
        complain(parser.prog, error)
        sys.exit(2)


def _pages(options: argparse.Namespace) -> list[Path]:
    """Write what was asked for; the pages that were written."""
    if options.all:
        return [_write_index(options)]
    runs, left_out = _runs(options.runs)
    if len(runs) > 1 and not options.each:
        return [_compare(options, runs, left_out)]
    folders = _folders(runs, options.output)
    return [_write(run, folder) for run, folder in zip(runs, folders, strict=True)]


def _runs(named: list[str]) -> tuple[list[Path], list[str]]:
    """The runs that were named, sweeps and patterns replaced by theirs, and sentences about those that have not begun.

    All are looked at before the first page is written.
    """
    found: list[Path] = []
    for text in named:
        if not has_magic(text) or Path(text).exists():
            found += _runs_at(Path(text))
            continue
        matches = [Path(match) for match in sorted(glob(text), key=in_number_order) if Path(match).is_dir()]
        if not matches:
            raise DataError(f"{text} fits no folder: name the directory of a run, such as outputs/DAY/TIME")
        # a pattern may fit what is none of ours
        found += [run for match in matches for run in ([match] if is_run(match) else runs_in(match))]
    found = list(dict.fromkeys(found))
    begun = [run for run in found if (run / METRICS_FILE).is_file()]
    waiting = [run for run in found if run not in begun]
    if not begun:
        raise DataError(f"{', '.join(named)}: no run has started there, as none has a {METRICS_FILE}")
    return begun, [f"{run.parent.name}/{run.name} is left out: it has no {METRICS_FILE} yet." for run in waiting]


def _runs_at(path: Path) -> list[Path]:
    """A run itself, or those of a sweep."""
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: name the directory of a run, such as outputs/DAY/TIME")
    if (path / METRICS_FILE).is_file():
        return [path]
    runs = runs_in(path)
    if is_run(path) or not runs:
        raise DataError(
            f"{path} is not the directory of a run that has started: it has no {METRICS_FILE}, which a report is made from"
        )
    return runs


def _folders(runs: list[Path], output: Path | None) -> list[Path]:
    """Where each report goes."""
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


def _write(run: Path, folder: Path) -> Path:
    # matplotlib takes about a second to load, which a usage error need not wait for
    from maxent_grpo.report.page import write_page
    from maxent_grpo.report.picture import draw_picture

    try:
        folder.mkdir(parents=True, exist_ok=True)
        page, picture = write_page(run, folder), draw_picture(run, folder)
    except OSError as error:
        raise _unwritable(f"the report of {run}", folder, error) from error
    print(f"wrote {page}")
    print(f"wrote {picture}")
    return page


def _compare(options: argparse.Namespace, runs: list[Path], left_out: list[str]) -> Path:
    from maxent_grpo.report.arms.figures import read_findings
    from maxent_grpo.report.arms.page import write_comparison_page
    from maxent_grpo.report.arms.picture import draw_arms

    folder = options.output or _common_folder(runs)
    findings = read_findings(runs, options.baseline, left_out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page, pictures = write_comparison_page(findings, folder, options.x), draw_arms(findings, folder)
    except OSError as error:
        raise _unwritable("the comparison", folder, error) from error
    for path in (page, *pictures):
        print(f"wrote {path}")
    return page


def _common_folder(runs: list[Path]) -> Path:
    """The folder that holds all of the runs, relative where the runs are."""
    common = Path(os.path.commonpath([run.resolve().parent for run in runs]))
    here = Path.cwd()
    return common.relative_to(here) if common.is_relative_to(here) and not runs[0].is_absolute() else common


def _write_index(options: argparse.Namespace) -> Path:
    from maxent_grpo.report.index.page import write_index

    if len(options.runs) > 1:
        raise DataError("--all takes one folder: the table's links lead to what lies below it")
    root = Path(options.runs[0]) if options.runs else OUTPUTS
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: --all takes the folder that runs lie in, such as {OUTPUTS}")
    if options.output is not None:
        raise DataError(
            "--all writes into the folder that it lists, so that its links lead to the reports: leave --output out"
        )
    try:
        page = write_index(root)
    except OSError as error:
        raise _unwritable("the table", root, error) from error
    print(f"wrote {page}")
    return page


def _unwritable(what: str, folder: Path, error: OSError) -> DataError:
    return DataError(
        f"{what} cannot be written into {folder} ({error}): choose a folder you can write to with --output"
    )

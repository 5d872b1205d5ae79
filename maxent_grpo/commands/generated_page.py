"""Commands that write a page of the documentation from the code, or say whether it is up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from maxent_grpo.config.compose import config_directory


def page_file(name: str) -> Path:
    """Where a page stands in the repository; for an installed package ``docs`` in the current directory."""
    docs = config_directory().parent / "docs"
    return (docs if docs.is_dir() else Path("docs")) / name


def write_page(arguments: list[str], command: str, name: str, text: Callable[[], str], description: str) -> None:
    """Write a page, or with --check say whether it is up to date (exit status 1 if not).

    Args:
        arguments: of the command line.
        command: name of the command.
        name: file name of the page.
        text: makes the page.
        description: what `--help` says of it.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m maxent_grpo {command}",
        description=description,
        epilog="Exit status: 0 written or up to date, 1 out of date (--check). `make docs` writes every generated page.",
    )
    parser.add_argument("--output", type=Path, default=page_file(name), help="file to write (default: %(default)s)")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the file is not what would be written"
    )
    options = parser.parse_args(arguments)
    page = text()
    if not options.check:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(page, encoding="utf-8")
        print(f"wrote {options.output}")
    elif not options.output.is_file() or options.output.read_text(encoding="utf-8") != page:
        print(f"{options.output} is out of date: run python -m maxent_grpo {command}", file=sys.stderr)
        sys.exit(1)

"""`python -m maxent_grpo config-docs`: write the configuration reference."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from maxent_grpo.config.compose import config_directory
from maxent_grpo.config.reference import reference


def reference_file() -> Path:
    """Where the reference stands in the repository."""
    return config_directory().parent / "docs" / "config.md"


def main(arguments: list[str]) -> None:
    """Write the reference, or with --check say whether it is up to date (exit status 1 if not)."""
    parser = argparse.ArgumentParser(
        prog="python -m maxent_grpo config-docs",
        description="Write docs/config.md: every configuration group, option and setting with its type, default, unit and "
        "meaning, read from the dataclasses.",
        epilog="Exit status: 0 written or up to date, 1 out of date (--check). `make docs` writes it together with "
        "docs/metrics.md.",
    )
    parser.add_argument("--output", type=Path, default=reference_file(), help="file to write (default: %(default)s)")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the file is not what would be written"
    )
    options = parser.parse_args(arguments)
    text = reference()
    if not options.check:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, encoding="utf-8")
        print(f"wrote {options.output}")
    elif not options.output.is_file() or options.output.read_text(encoding="utf-8") != text:
        print(f"{options.output} is out of date: run python -m maxent_grpo config-docs", file=sys.stderr)
        sys.exit(1)

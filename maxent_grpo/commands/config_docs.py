"""`python -m maxent_grpo config-docs`: write the configuration reference."""

from __future__ import annotations

from pathlib import Path

from maxent_grpo.commands.generated_page import page_file, write_page
from maxent_grpo.config.reference import reference

PAGE = "config.md"


def reference_file() -> Path:
    """Where the reference stands in the repository."""
    return page_file(PAGE)


def main(arguments: list[str]) -> None:
    """Write the reference, or with --check say whether it is up to date (exit status 1 if not)."""
    write_page(
        arguments,
        "config-docs",
        PAGE,
        reference,
        "Write docs/config.md: every configuration group, option and setting with its type, default, unit and meaning, read "
        "from the dataclasses.",
    )

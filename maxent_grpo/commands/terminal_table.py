"""A table for people: drawn on a terminal, aligned columns in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def show_table(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print rows below their heads, the first column to the left and all others to the right, after an empty line."""
    print()
    if console.is_terminal:
        table = Table(title=title or None, title_justify="left", title_style="bold")
        for place, head in enumerate(heads):
            table.add_column(head, justify="left" if place == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    if title:
        print(title)
    lines = [heads, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    for line in lines:
        cells = [
            f"{line[0]:<{widths[0]}}",
            *(f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        print("  ".join(cells).rstrip())

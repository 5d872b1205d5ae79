"""Tables in a page: plain cells, and a frame that scrolls sideways where a window is narrow."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table_html(heads: Sequence[str], rows: Sequence[Sequence[str]], *, key: str = "", kind: str = "") -> str:
    """A table of cells that are HTML already, under heads that are plain text; the first cell of a row names it."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    marks = f"{f' id={chr(34)}{escape(key)}{chr(34)}' if key else ''}"
    return (
        f'<div class="table {kind}"{marks}><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )  # fmt: skip

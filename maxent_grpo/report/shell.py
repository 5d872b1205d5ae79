"""The frame of every page: one self-contained file, which asks nothing of any network.

Styles and script stand in the page, and its policy forbids everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from maxent_grpo.report.atomic import write_atomically

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""Content security policy: the page's own styles and script, and no request at all."""


Section = tuple[str, str, str]
"""Its id, title and content; a section without a title stands in no navigation."""


def page_html(
    title: str,
    header: str,
    sections: Sequence[Section],
    footer: str,
    *,
    styles: Sequence[str] = ("page.css",),
    scripts: Sequence[str] = ("page.js",),
) -> str:
    """A whole page; all but ``title`` and the titles of sections is HTML already."""
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name, _ in sections if name)
    body = "".join(
        f'<section id="{key}">{f"<h2>{escape(name)}</h2>" if name else ""}{content}</section>'
        for key, name, content in sections
    )
    style, script = ("".join(map(_asset, names)) for names in (styles, scripts))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{header}\n<nav>{links}</nav>\n<main>\n{body}\n</main>\n<footer>{footer}</footer>\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def write_html(path: Path, page: str) -> Path:
    """Write a page, atomically; returns its path."""
    # a completion may hold half a surrogate pair, which no encoding has
    data = page.encode("utf-8", "backslashreplace")
    write_atomically(path, lambda file: file.write(data))
    return path


def _asset(name: str) -> str:
    return files("maxent_grpo.report").joinpath(name).read_text(encoding="utf-8")

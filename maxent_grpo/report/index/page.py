"""index.html: all runs of a folder in one table, sorted and filtered in the page, with links to their reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from maxent_grpo.report.index.scan import IndexedRun, scan
from maxent_grpo.report.read import COMPARISON_PAGE, PAGE_FILE
from maxent_grpo.report.shell import page_html, write_html
from maxent_grpo.report.svg import sparkline

INDEX_PAGE = "index.html"
UNKNOWN = "–"
TEXTS = ("run", "method", "task", "model")
"""Columns of words, which stand to the left."""


def write_index(root: Path) -> Path:
    """Write ``index.html`` of the runs below ``root`` into it, replacing an old one; returns its path."""
    return write_html(root / INDEX_PAGE, index_page(root))


def index_page(root: Path) -> str:
    """The page; runs of a sweep are one group, which can be shown alone."""
    runs = scan(root)
    figures = list(dict.fromkeys(name for run in runs for name in run.figures if name != "reward"))
    figures.sort(key=lambda name: (not name.startswith("pass"), name.partition("@")[0], int(name.partition("@")[2])))
    figures += ["reward"] if any("reward" in run.figures for run in runs) else []
    heads = ["run", "method", "task", "model", "seed", "status", "steps", *figures, "course", "written"]
    head = "".join(_head(name) for name in heads)
    body = "".join(_row(run, figures) for run in runs)
    table = f'<div class="table index"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    finished = sum(run.is_finished for run in runs)
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}, {finished} finished"
    header = (
        f'<header id="top"><p class="kind">maxent_grpo runs</p><h1>{escape(root.resolve().name)}</h1>'
        f'<p class="note">{count}</p></header>'
    )
    empty = "" if runs else '<p class="absent">No run lies below this folder.</p>'
    sections = [("runs", "", f"{_controls(runs)}{table}{empty}"), *_sweeps(root, runs)]
    footer = (
        "<p>Figures are the newest held-out ones of each run, and its reward as the mean of its last recorded steps; the course is "
        "that of the first figure, or of the reward. They are of single runs: what differs between methods is said by a comparison "
        "of several seeds. Click a heading to sort.</p>"
    )
    return page_html(
        f"runs in {root.resolve().name}",
        header,
        sections,
        footer,
        styles=("page.css", "tables.css"),
        scripts=("index.js",),
    )


def _head(name: str) -> str:
    kind = ' class="text"' if name in TEXTS else ""
    return f'<th scope="col"{kind}>{escape(name) if name == "course" else f"<button>{escape(name)}</button>"}</th>'


def _controls(runs: Sequence[IndexedRun]) -> str:
    states = '<option value="">any status</option><option value="finished">finished</option><option value="unfinished">unfinished</option>'
    sweeps = "".join(
        f'<option value="{escape(name)}">{escape(name)}</option>'
        for name in dict.fromkeys(r.sweep for r in runs)
        if name
    )
    groups = (
        f'<select id="sweep" aria-label="sweep"><option value="">all sweeps</option>{sweeps}</select>' if sweeps else ""
    )
    return (
        '<div class="index-controls"><input id="words" type="search" placeholder="filter: words of a run, method, task …" '
        f'aria-label="filter"><select id="state" aria-label="status">{states}</select>{groups}<span class="note" id="count"></span></div>'
    )


def _link(folder: Path, page: str) -> str:
    return quote(f"{folder.as_posix()}/{page}")


def _row(run: IndexedRun, figures: Sequence[str]) -> str:
    name = escape(run.folder.name)
    where = "" if run.folder.parent == Path() else f'<span class="where">{escape(run.folder.parent.as_posix())}</span>'
    # a path may begin with what reads like a scheme; ./ says that it is none
    link = (
        f'<a href="./{_link(run.folder, PAGE_FILE)}">{name}</a>'
        if run.has_page
        else f'<span title="no {PAGE_FILE} yet">{name}</span>'
    )
    kind, tag = ("finished", "good") if run.is_finished else ("unfinished", "bad")
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.changed))
    cells = [
        _cell(run.method), _cell(run.task), _cell(run.model),
        f'<td data-value="{"" if run.seed is None else run.seed}">{UNKNOWN if run.seed is None else run.seed}</td>',
        f'<td data-value="{kind}"><span class="tag {tag}" title="{escape(run.state)}">{kind}</span></td>',
        f'<td data-value="{run.last_step}">{run.last_step}</td>',
        *(_figure(run.figures.get(figure)) for figure in figures),
        f"<td>{sparkline(run.course, 0)}</td>",
        f'<td data-value="{run.changed:.0f}">{written}</td>',
    ]  # fmt: skip
    return (
        f'<tr data-state="{kind}" data-sweep="{escape(run.sweep)}"><th scope="row" data-value="{escape(run.folder.as_posix())}">'
        f"{link}{where}</th>{''.join(cells)}</tr>"
    )


def _cell(text: str) -> str:
    return f'<td class="text" data-value="{escape(text)}">{escape(text) or UNKNOWN}</td>'


def _figure(value: float | None) -> str:
    return f"<td data-value=''>{UNKNOWN}</td>" if value is None else f'<td data-value="{value:.6g}">{value:.3f}</td>'


def _sweeps(root: Path, runs: Sequence[IndexedRun]) -> list[tuple[str, str, str]]:
    """The sweeps with how far they are, and the link to their comparison or the command that writes it."""
    members = sorted((run for run in runs if run.sweep), key=lambda run: run.sweep)
    if not members:
        return []
    items = []
    for name, group in groupby(members, key=lambda run: run.sweep):
        of_sweep = list(group)
        done = sum(run.is_finished for run in of_sweep)
        methods = ", ".join(sorted({run.method for run in of_sweep if run.method}))
        page = root / name / COMPARISON_PAGE
        if page.is_file():
            link = f'<a href="./{_link(Path(name), COMPARISON_PAGE)}">comparison</a>'
        else:
            link = f"<code>python -m maxent_grpo report {escape(str(root / name))}</code>"
        items.append(f"<p><b>{escape(name)}</b> {done} of {len(of_sweep)} runs finished; {escape(methods)}; {link}</p>")
    return [("sweeps", "Sweeps", f'<div class="words">{"".join(items)}</div>')]

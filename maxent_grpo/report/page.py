"""report.html: one run on one self-contained page, which asks nothing of any network.

Charts are inline SVG. Equal run directories give equal pages, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from maxent_grpo.report.chart_build import Drawn, all_names, build_section
from maxent_grpo.report.chart_table import SECTIONS, SectionSpec
from maxent_grpo.report.configuration import configuration_html
from maxent_grpo.report.evaluations import charts_against_k
from maxent_grpo.report.headline import header_html
from maxent_grpo.report.phases import phase_chart, phase_totals
from maxent_grpo.report.read import COMPLETIONS_FILE, PAGE_FILE
from maxent_grpo.report.record import RunRecord, read_record
from maxent_grpo.report.samples import read_samples, samples_html
from maxent_grpo.report.scale import duration, share
from maxent_grpo.report.series import MAX_POINTS
from maxent_grpo.report.shell import page_html, write_html
from maxent_grpo.report.svg import figure


def report_page(run_dir: Path) -> str:
    """The page of a run, finished or not.

    Raises:
        DataError: metrics.jsonl is missing, or a file of the run is damaged.
    """
    record = read_record(run_dir)
    names = all_names(record.rows)
    built = [(spec, build_section(spec, record.rows, names)) for spec in SECTIONS]
    sections = [(spec.key, spec.title, _section_body(spec, drawn, record)) for spec, drawn in built]
    sections.append(("samples", "Sample completions", _samples_body(run_dir)))
    sections.append(("configuration", "Configuration", configuration_html(record)))
    title = f"{record.identity.label}, run {record.identity.folder}"
    return page_html(title, header_html(record), sections, _reading_notes([drawn for _, drawn in built]))


def write_page(run_dir: Path, folder: Path | None = None) -> Path:
    """Write ``report.html`` of a run into ``folder``, by default its own, replacing an old one; returns its path."""
    return write_html((folder or run_dir) / PAGE_FILE, report_page(run_dir))


def _section_body(spec: SectionSpec, drawn: Drawn, record: RunRecord) -> str:
    charts = list(drawn.charts)
    before = ""
    if spec.key == "evaluation":
        against_k, limits = charts_against_k(record.run_dir, record.rows)
        charts[1:1] = against_k[:1]
        charts[3:3] = against_k[1:]
        if limits:
            drawn.notes.append(limits)
        if not against_k:
            drawn.missing.append("pass@k against k")
    if spec.key == "cost":
        before = _shares_html(record)
        stacked = phase_chart(record.rows)
        charts[:0] = [] if stacked is None else [stacked]
    figures = f'<div class="charts">{"".join(map(figure, charts))}</div>' if charts else ""
    return f'<p class="lead">{escape(spec.lead)}</p>{before}{figures}{in_words(drawn)}'


def in_words(drawn: Drawn) -> str:
    """The sentences about what limits a section's charts, and what is not drawn."""
    parts = [f"<p>{escape(note)}</p>" for note in drawn.notes]
    if drawn.constant:
        parts.append(f"<p><b>Did not move</b> {escape('; '.join(drawn.constant))}</p>")
    if drawn.missing:
        parts.append(f"<p><b>Not recorded</b> {escape('; '.join(drawn.missing))}</p>")
    return f'<div class="words">{"".join(parts)}</div>' if parts else ""


def _shares_html(record: RunRecord) -> str:
    """A bar of the whole run's seconds by phase, and its key."""
    totals = phase_totals(record.rows)
    whole = sum(seconds for _, seconds in totals)
    if not whole:
        return ""
    pieces = "".join(
        f'<b class="c{color}" style="flex-grow:{seconds / whole:.5f}"></b>' for color, (_, seconds) in enumerate(totals)
    )
    keys = "".join(
        f'<li><i class="swatch c{color}"></i>{escape(name)} <b>{duration(seconds)}</b> '
        f'<span class="unit">{share(seconds / whole)}</span></li>'
        for color, (name, seconds) in enumerate(totals)
    )
    return (
        f'<figure class="shares" id="chart-shares"><figcaption><h3>Time by phase</h3><span class="unit">whole run, '
        f'{duration(whole)}</span></figcaption><div class="bar">{pieces}</div><ul class="legend">{keys}</ul></figure>'
    )


def _samples_body(run_dir: Path) -> str:
    samples = read_samples(run_dir)
    if samples is None:
        return f'<p class="absent">The run has no {COMPLETIONS_FILE}: logging.completions_every=0, or no step came to record.</p>'
    return samples_html(samples)


def _reading_notes(drawn: Sequence[Drawn]) -> str:
    """How the lines are to be read, and whether some were thinned."""
    notes = ["Bold lines are moving averages over a twenty-fifth of the run, thin ones what was recorded."]
    if any(section.is_merged for section in drawn):
        notes.append(
            f"Lines of more than {MAX_POINTS} values are drawn through the means of {MAX_POINTS} equal stretches; the shade "
            "reaches from each stretch's lowest to its highest value. metrics.jsonl has every value."
        )
    notes.append("Point at a chart to read the values of its bold lines.")
    return f"<p>{escape(' '.join(notes))}</p>"

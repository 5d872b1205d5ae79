"""comparison.html: arms of runs against each other on one self-contained page.

Equal run directories give equal pages, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from maxent_grpo.report.arms.beside import beside_html
from maxent_grpo.report.arms.cautions import cautions
from maxent_grpo.report.arms.curves import AXES, Across, arm_sections, charts_against_k
from maxent_grpo.report.arms.figures import Findings, aggregates
from maxent_grpo.report.arms.group import Comparison
from maxent_grpo.report.arms.result import aggregates_html, phases_html, result_html, seeds_html, swatch
from maxent_grpo.report.configuration import value_text
from maxent_grpo.report.difference import ABSENT, differing
from maxent_grpo.report.page import in_words
from maxent_grpo.report.read import COMPARISON_PAGE
from maxent_grpo.report.shell import Section, page_html, write_html
from maxent_grpo.report.svg import figure
from maxent_grpo.report.tables import table_html

STYLES = ("page.css", "tables.css")


def comparison_page(findings: Sequence[Findings], across: str = "steps") -> str:
    """The page of arms on one or several tasks; ``across`` is what the horizontal axes count, a key of AXES.

    Raises:
        DataError: a file of a run is damaged.
    """
    comparisons = [each.comparison for each in findings]
    sections: list[Section] = []
    for place, each in enumerate(findings):
        suffix = "" if place == 0 else f"-{place + 1}"
        task = f" on {each.comparison.task}" if len(findings) > 1 else ""
        sections += _task_sections(each, AXES[across], suffix, task)
    over = aggregates_html(aggregates(findings), len(findings))
    if over:
        name = "Over seeds and tasks" if len(findings) > 1 else "Over seeds"
        sections.insert(2, ("aggregate", name, over))
    return page_html(_title(comparisons), _header(comparisons), sections, f"<p>{_FOOTER}</p>", styles=STYLES)


def write_comparison_page(findings: Sequence[Findings], folder: Path, across: str = "steps") -> Path:
    """Write ``comparison.html`` into ``folder``, replacing an old one; returns its path."""
    return write_html(folder / COMPARISON_PAGE, comparison_page(findings, across))


def _task_sections(findings: Findings, across: Across, suffix: str, task: str) -> list[Section]:
    comparison = findings.comparison
    words = "".join(f"<li>{escape(sentence)}</li>" for sentence in cautions(findings))
    found: list[Section] = [
        (f"first{suffix}", f"Before the numbers{task}", f'<ul class="cautions">{words}</ul>'),
        (f"result{suffix}", f"Result{task}", result_html(findings, suffix)),
    ]
    for spec, drawn in arm_sections(comparison, across):
        charts = list(drawn.charts)
        if spec.key == "evaluation":
            charts += charts_against_k(findings)
        figures = "".join(figure(chart, suffix) for chart in charts)
        before = phases_html(findings) if spec.key == "cost" else ""
        if charts or before:
            shown = f'<div class="charts">{figures}</div>' if charts else ""
            lead = f'<p class="lead">{escape(spec.lead)} {escape(_axis_words(across))}</p>'
            found.append((f"{spec.key}{suffix}", f"{spec.title}{task}", f"{lead}{before}{shown}{in_words(drawn)}"))
    found += [
        (f"seeds{suffix}", f"Every seed{task}", seeds_html(findings)),
        (f"samples{suffix}", f"Sample completions{task}", beside_html(comparison)),
        (f"configuration{suffix}", f"What differs{task}", _differences_html(comparison)),
    ]
    return found


def _axis_words(across: Across) -> str:
    return "" if across is AXES["steps"] else f"Horizontal: {across.meaning}."


def _differences_html(comparison: Comparison) -> str:
    """The chosen options and settings that are not the same in all arms."""
    arms = comparison.arms
    if len(arms) == 1:
        return '<p class="absent">One arm: its runs differ in nothing but the seed.</p>'
    options = {f"{name}=": values for name, values in differing([arm.options for arm in arms]).items()}
    settings = options | differing([arm.settings for arm in arms])
    rows = [
        [escape(path), *(f"<code>{escape(value if value == ABSENT else value_text(value))}</code>" for value in values)]
        for path, values in settings.items()
    ]
    return table_html(["setting", *(arm.name for arm in arms)], rows, kind="settings")


def _title(comparisons: Sequence[Comparison]) -> str:
    names = list(dict.fromkeys(arm.name for each in comparisons for arm in each.arms))
    if len(names) == 1:
        return names[0]
    others = names[1] if len(names) == 2 else f"{len(names) - 1} arms"
    return f"{others} against {comparisons[0].baseline.name}"


def _header(comparisons: Sequence[Comparison]) -> str:
    arms = {arm.name: arm for each in comparisons for arm in each.arms}
    num_runs = sum(len(arm.runs) for each in comparisons for arm in each.arms)
    cuts = dict.fromkeys(str(each.last_step) for each in comparisons)
    facts = {
        "arms": str(len(arms)),
        "runs": str(num_runs),
        "baseline": comparisons[0].baseline.name,
        "task": ", ".join(each.task for each in comparisons),
        "compared up to step": ", ".join(cuts),
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    key = "".join(f"<li>{swatch(arm)} <span>×{len(arm.runs)}</span></li>" for arm in arms.values())
    return (
        f'<header id="top"><p class="kind">maxent_grpo comparison</p><h1>{escape(_title(comparisons))}</h1>'
        f'<dl class="facts">{items}</dl><ul class="legend arms">{key}</ul></header>'
    )


_FOOTER = (
    "Lines are means over the seeds of an arm, shades reach from the lowest to the highest seed, thin lines are seeds. Noisy metrics "
    "are moving averages over a twenty-fifth of the run, of each seed before the mean. Point at a chart to read the values of its "
    "lines. Ranges over seeds are not intervals; intervals stand under Result."
)

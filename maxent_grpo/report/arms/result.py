"""The result of a comparison: final figures with their intervals, differences from the baseline, and every seed by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from maxent_grpo.report.arms.figures import EQUIVALENCE_MEASURE, Aggregate, Effect, Findings, family
from maxent_grpo.report.arms.forest import Forest, ForestRow, forest_figure
from maxent_grpo.report.arms.group import Arm
from maxent_grpo.report.phases import phases_of
from maxent_grpo.report.read import metric_series
from maxent_grpo.report.record import RunRecord, status
from maxent_grpo.report.scale import duration, short
from maxent_grpo.report.svg import NUM_COLORS, NUM_DASHES
from maxent_grpo.report.tables import table_html
from maxent_grpo.stats.compare import LEVEL, NUM_RESAMPLES, Interval
from maxent_grpo.stats.seed_tests import MARGIN, MOST_EXACT, NUM_PATTERNS, smallest_p

UNKNOWN = "–"
ENDS = (
    ("reward/mean", "reward"),
    ("policy/entropy", "entropy"),
    ("policy/kl_to_reference", "KL"),
    ("weights/effective_size", "effective size"),
    ("policy/clip_ratio_low_mean", "clipped low"),
    ("policy/clip_ratio_high_mean", "clipped high"),
)
"""Training metrics of the table of seeds, those that are not 0 throughout, as means of the last twenty-fifth of the steps."""


def swatch(arm: Arm) -> str:
    """An arm's name behind its line."""
    dash = arm.color % NUM_DASHES
    look = f"c{arm.color % NUM_COLORS}{f' dash{dash}' if dash else ''}"
    return f'<i class="swatch {look}"></i>{escape(arm.name)}'


def interval_text(interval: Interval, *, is_signed: bool = False) -> str:
    """Mean and interval to three decimals."""
    mean = f"{interval.mean:+.3f}" if is_signed else f"{interval.mean:.3f}"
    if math.isnan(interval.low):
        return mean
    return f"{mean} [{interval.low:.3f}, {interval.high:.3f}]"


def result_html(findings: Findings, suffix: str) -> str:
    """Figures and tables of one task; ``suffix`` keeps ids of several tasks apart."""
    if not findings.measures:
        return '<p class="absent">No held-out figure was recorded by every run at a common step.</p>'
    forests = [_finals(findings, name, suffix) for name in findings.measures]
    forests += [_differences(findings, name, suffix) for name in findings.measures if _of(findings, name)]
    parts = [
        f'<p class="lead">{escape(_lead(findings))}</p>',
        f'<div class="charts">{"".join(map(forest_figure, forests))}</div>',
    ]
    if findings.effects:
        parts.append(_effects_html(findings))
    return "".join(parts)


def _lead(findings: Findings) -> str:
    seeds = max(len(arm.runs) for arm in findings.comparison.arms)
    problems = "" if findings.num_problems is None else f" on {findings.num_problems} held-out problems"
    start = f"At step {findings.step}{problems}. "
    if seeds == 1:
        return f"{start}One run an arm: its own figure, without an interval."
    within = "" if findings.num_problems is None else ", then problems within each seed,"
    return (
        f"{start}Strokes are seeds, marks their means, lines {LEVEL:.0%} intervals: seeds are drawn with replacement{within} "
        f"{NUM_RESAMPLES:,} times."
    )


def _finals(findings: Findings, measure: str, suffix: str) -> Forest:
    rows = []
    for arm in findings.comparison.arms:
        figure = findings.figures[arm.name][measure]
        points = figure.per_seed.tolist() if len(figure.per_seed) > 1 else ()
        rows.append(ForestRow(arm.name, figure.mean, interval_text(figure.mean), arm.color, points))
    return Forest(f"final-{_id(measure)}{suffix}", f"Final {measure}", f"step {findings.step}", rows)


def _differences(findings: Findings, measure: str, suffix: str) -> Forest:
    rows = [
        ForestRow(
            each.arm.name,
            each.mean,
            f"{interval_text(each.mean, is_signed=True)}{_p_text(each)}",
            each.arm.color,
            each.differences.tolist() if len(each.seeds) > 1 else (),
        )
        for each in _of(findings, measure)
    ]
    margin = MARGIN if measure == EQUIVALENCE_MEASURE else 0.0
    tested = "; p after Holm" if any(not math.isnan(each.p) for each in _of(findings, measure)) else ""
    unit = (
        f"minus {findings.comparison.baseline.name}, paired by seed{tested}{f'; shaded: ±{MARGIN:g}' if margin else ''}"
    )
    return Forest(
        f"effect-{_id(measure)}{suffix}", f"Difference in {measure}", unit, rows, has_zero=True, margin=margin
    )


def _id(measure: str) -> str:
    return measure.replace("@", "-")


def _of(findings: Findings, measure: str) -> list[Effect]:
    return [effect for effect in findings.effects if effect.measure == measure]


def _p_text(effect: Effect) -> str:
    return "" if math.isnan(effect.p_holm) else f", p {p_text(effect.p_holm)}"


def p_text(p: float) -> str:
    """A p-value in few characters."""
    if math.isnan(p):
        return UNKNOWN
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def shown(effect: Effect) -> str:
    """What the differences show, in words: nothing is "equal" for lack of a difference."""
    if math.isnan(effect.p):
        return "one seed: nothing"
    if effect.p_holm <= 1 - LEVEL:
        return "higher" if effect.mean.mean > 0 else "lower"
    equal = effect.equivalence
    if equal is not None and equal.p <= 1 - LEVEL:
        return f"equal within {100 * equal.margin:g} points"
    if equal is not None and equal.p_above <= 1 - LEVEL:
        return f"no worse by {100 * equal.margin:g} points"
    can_tell = smallest_p(len(effect.seeds), effect.num_tests) <= 1 - LEVEL
    return "no difference shown" if can_tell else "too few seeds to tell"


def _effects_html(findings: Findings) -> str:
    base = findings.comparison.baseline
    rows = []
    for each in sorted(findings.effects, key=lambda effect: findings.measures.index(effect.measure)):
        wins, losses = int((each.differences > 0).sum()), int((each.differences < 0).sum())
        equal = each.equivalence
        rows.append(
            (
                f"{escape(each.measure)} {swatch(each.arm)}",
                str(len(each.seeds)),
                interval_text(each.mean, is_signed=True),
                p_text(each.p),
                p_text(each.p_holm),
                f"{wins} : {losses}",
                p_text(each.p_sign),
                UNKNOWN if equal is None else p_text(equal.p_above),
                UNKNOWN if equal is None else p_text(equal.p),
                escape(shown(each)),
            )
        )
    heads = (
        "difference", "seeds", f"mean [{LEVEL:.0%}]", "p sign-flip", "p Holm", "up : down", "p signs", "p not worse", "p equal", "shown",
    )  # fmt: skip
    families = sorted({family(each.measure) for each in findings.effects})
    pairs = max(len(each.seeds) for each in findings.effects)
    counted = (
        "all sign patterns are counted"
        if pairs <= MOST_EXACT
        else f"{NUM_PATTERNS:,} drawn sign patterns (Monte Carlo)"
    )
    words = (
        f"Each arm minus {base.name}, seed by seed. p sign-flip: how often the mean difference is as large if each seed's sign "
        f"were a coin's; {counted}. p Holm: the same, adjusted for all arms and measures of its family ({', '.join(families)}). "
        f"p signs: from the directions alone. p not worse and p equal: one-sided t-tests that {EQUIVALENCE_MEASURE} is not lower "
        f"by {100 * MARGIN:g} points, and that it is within {100 * MARGIN:g} points on both sides, not adjusted; small values speak for it."
    )
    return f'<h3 class="sub">Compared with {escape(base.name)}</h3>{table_html(heads, rows, kind="effects")}<p class="note">{escape(words)}</p>'


def aggregates_html(found: Sequence[Aggregate], num_tasks: int) -> str:
    """Interquartile means and probabilities of improvement over seeds and tasks; empty where one seed says nothing."""
    if all(math.isnan(each.iqm.low) for each in found):
        return ""
    rows = [
        (
            f"{escape(each.measure)} {swatch(each.arm)}",
            interval_text(each.iqm),
            "baseline" if each.improvement is None else _chance(each.improvement),
        )
        for each in found
    ]
    heads = ("measure", f"IQM [{LEVEL:.0%}]", f"P(higher than baseline) [{LEVEL:.0%}]")
    over = f"seeds of {num_tasks} tasks" if num_tasks > 1 else "seeds"
    words = (
        f"IQM: mean of the middle half of all {over}. P(higher): chance that a run of the arm lies above a run of the baseline, "
        "runs not taken as pairs, ties counted half. Intervals: bootstrap that draws each task's seeds among themselves."
    )
    return f"{table_html(heads, rows, kind='aggregates')}<p class='note'>{escape(words)}</p>"


def _chance(interval: Interval) -> str:
    text = f"{interval.mean:.2f}"
    return UNKNOWN if math.isnan(interval.low) else f"{text} [{interval.low:.2f}, {interval.high:.2f}]"


def seeds_html(findings: Findings) -> str:
    """A row for each run: its seed, steps, figures at the compared step and the end of its training metrics."""
    comparison = findings.comparison
    runs = [run for _, run in comparison.runs]
    ends = [(metric, name) for metric, name in ENDS if any(row.get(metric) for run in runs for row in run.rows)]
    heads = ["arm", "seed", "steps", *findings.measures, *(name for _, name in ends), "seconds a step", "folder"]
    rows = []
    for arm in comparison.arms:
        for place, run in enumerate(arm.runs):
            figures = findings.figures.get(arm.name, {})
            done, sentence = status(run)
            steps = (
                str(run.last_step)
                if done
                else f'<span class="tag bad" title="{escape(sentence)}">{run.last_step}, not finished</span>'
            )
            rows.append(
                [
                    swatch(arm),
                    str(arm.seeds[place] if arm.seeds[place] is not None else UNKNOWN),
                    steps,
                    *(f"{figures[name].per_seed[place]:.3f}" for name in findings.measures),
                    *(_end(run, metric, comparison.last_step) for metric, _ in ends),
                    _end(run, "time/step_seconds", comparison.last_step, of_all=True),
                    f'<span class="row-id">{escape(run.run_dir.name)}</span>',
                ]
            )
    words = f"Training metrics are means of the last twenty-fifth of the steps up to {comparison.last_step}; times are of all steps."
    return f"{table_html(heads, rows, kind='seeds')}<p class='note'>{escape(words)}</p>"


def _end(run: RunRecord, metric: str, last_step: int, *, of_all: bool = False) -> str:
    steps, values = metric_series(run.rows, metric)
    kept = [value for step, value in zip(steps, values, strict=True) if 0 < step <= last_step]
    if not kept:
        return UNKNOWN
    return short(float(np.mean(kept if of_all else kept[-max(1, len(kept) // 25) :])))


def phases_html(findings: Findings) -> str:
    """Mean seconds of a run by phase for each arm; empty where nothing was timed."""
    arms = findings.comparison.arms
    totals = [_phase_means(arm, findings.comparison.last_step) for arm in arms]
    names = sorted(
        {name for each in totals for name in each}, key=lambda name: -max(each.get(name, 0.0) for each in totals)
    )
    if not names:
        return ""
    rows = [
        [
            swatch(arm),
            duration(sum(each.values())),
            *(duration(each[name]) if name in each else UNKNOWN for name in names),
        ]
        for arm, each in zip(arms, totals, strict=True)
    ]
    return table_html(["time up to the common step, mean of a run", "all", *names], rows, kind="phases")


def _phase_means(arm: Arm, last_step: int) -> dict[str, float]:
    sums: dict[str, float] = {}
    for run in arm.runs:
        for name, (_, seconds) in phases_of([row for row in run.rows if row["step"] <= last_step]).items():
            sums[name] = sums.get(name, 0.0) + sum(seconds) / len(arm.runs)
    return sums

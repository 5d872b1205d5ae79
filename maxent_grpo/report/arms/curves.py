"""Curves of arms: the charts of a single run's page, one metric each, with a line for every arm and a band over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from maxent_grpo.report.arms.figures import Findings
from maxent_grpo.report.arms.group import Arm, Comparison
from maxent_grpo.report.chart_build import Drawn, all_names, counted, traces_of
from maxent_grpo.report.chart_table import COST, SECTIONS, ChartSpec, SectionSpec, Trace
from maxent_grpo.report.evaluations import coverage_curve, pass_curve
from maxent_grpo.report.read import metric_series
from maxent_grpo.report.record import RunRecord
from maxent_grpo.report.scale import short
from maxent_grpo.report.series import Floats, means, smoothed, stretches
from maxent_grpo.report.svg import NUM_COLORS, NUM_DASHES, Chart, Line

TOKENS, SECONDS = "data/input_tokens_seen", "time/step_seconds"
STEP_TIME = ChartSpec("step_seconds", "Time of a step", "seconds", (Trace(SECONDS, "seconds"),), from_zero=True)
MOST_FAINT = 8
"""Most seeds that are drawn as lines of their own behind the mean."""


@dataclass(frozen=True, slots=True)
class Across:
    """What a horizontal axis counts: its name, and where a run's steps lie on it."""

    name: str
    meaning: str
    places: Callable[[RunRecord], Mapping[int, float]]


def _steps(run: RunRecord) -> dict[int, float]:
    return {row["step"]: float(row["step"]) for row in run.rows}


def _tokens(run: RunRecord) -> dict[int, float]:
    return {0: 0.0} | dict(zip(*metric_series(run.rows, TOKENS), strict=True))


def _seconds(run: RunRecord) -> dict[int, float]:
    steps, seconds = metric_series(run.rows, SECONDS)
    return {0: 0.0} | dict(zip(steps, np.cumsum(seconds).tolist(), strict=True))


AXES = {
    "steps": Across("step", "optimiser steps", _steps),
    "tokens": Across("tokens", "prompt and completion tokens fed to training, mean over an arm's seeds", _tokens),
    "seconds": Across("seconds", "seconds in optimiser steps, without evaluations, mean over an arm's seeds", _seconds),
}
"""What `--x` may say."""


def arm_sections(comparison: Comparison, across: Across) -> Iterator[tuple[SectionSpec, Drawn]]:
    """The sections of a run's page, every chart with a line for each arm."""
    rows = [row for _, run in comparison.runs for row in run.rows if row["step"] <= comparison.last_step]
    names = all_names(rows)
    for spec in SECTIONS:
        drawn = Drawn()
        for chart in (STEP_TIME, *spec.charts) if spec is COST else spec.charts:
            _build(chart, comparison, names, across, drawn)
        yield spec, drawn


def _build(spec: ChartSpec, comparison: Comparison, names: Sequence[str], across: Across, drawn: Drawn) -> None:
    """A chart for each recorded metric of the spec; targets stand beside what is measured on a run's own page only."""
    traces = [trace for trace in traces_of(spec, names) if not trace.is_dashed]
    if not traces:
        drawn.missing.append(spec.title)
    for place, trace in enumerate(traces if len(traces) >= spec.least else []):
        title = _title(spec, trace, len(traces))
        series = {arm.name: arm_series(arm, spec, trace, comparison.last_step) for arm in comparison.arms}
        values = [found[1] for found in series.values() if found is not None]
        if not values:
            continue
        if min(each.min() for each in values) == max(each.max() for each in values):
            drawn.constant.append(f"{title} = {short(float(values[0].flat[0]))}")
            continue
        found = ((arm, series[arm.name]) for arm in comparison.arms)
        lines = [_line(arm, *each, across, spec) for arm, each in found if each is not None]
        lines = [line for line in lines if len(line.x)]
        if lines:
            key = spec.key if len(traces) == 1 else f"{spec.key}-{place}"
            chart = Chart(key, title, spec.unit, lines, from_zero=spec.from_zero, top=spec.top, x_name=across.name)
            drawn.charts.append(chart)


def _title(spec: ChartSpec, trace: Trace, num_traces: int) -> str:
    if "@" in trace.label and trace.metric == f"eval/{trace.label}":
        return trace.label  # a measure says it all
    return spec.title if num_traces == len(spec.traces) == 1 else f"{spec.title}: {trace.label}"


def arm_series(arm: Arm, spec: ChartSpec, trace: Trace, last_step: int) -> tuple[list[int], Floats] | None:
    """Steps that every run of the arm recorded, up to ``last_step``, and the values at them [seeds, steps]; None without any."""
    read = counted if spec.is_count else metric_series
    found = [dict(zip(*read(run.rows, trace.metric), strict=True)) for run in arm.runs]
    steps = sorted(step for step in set.intersection(*map(set, found)) if step <= last_step)
    if not steps:
        return None
    return steps, np.array([[each[step] for step in steps] for each in found], dtype=np.float64)


def _line(arm: Arm, steps: Sequence[int], values: Floats, across: Across, spec: ChartSpec) -> Line:
    """The mean over seeds, the range from lowest to highest seed, and each seed behind it where there are few."""
    places = [across.places(run) for run in arm.runs]
    kept = [place for place, step in enumerate(steps) if all(step in each for each in places)]
    x = np.array([np.mean([each[steps[place]] for each in places]) for place in kept], dtype=np.float64)
    rows = [smoothed(row.tolist()) if spec.is_noisy else row for row in values[:, kept]]
    if len(x):
        firsts = stretches(len(x))
        x, rows = means(x, firsts), [means(row, firsts) for row in rows]
    return seed_line(arm, x, np.array(rows), has_dots=not spec.is_noisy and len(x) <= 30)


def seed_line(arm: Arm, x: Floats, rows: Floats, *, has_dots: bool = False) -> Line:
    """A line through the mean of ``rows`` [seeds, points] with its range."""
    count = len(rows)
    is_banded = count > 1
    return Line(
        label=arm.name,
        x=x,
        y=rows.mean(axis=0),
        color=arm.color % NUM_COLORS,
        low=rows.min(axis=0) if is_banded else None,
        high=rows.max(axis=0) if is_banded else None,
        raw=tuple((x, row) for row in rows) if 1 < count <= MOST_FAINT and has_dots else (),
        dash=arm.color % NUM_DASHES,
        has_dots=has_dots,
    )


def charts_against_k(findings: Findings) -> list[Chart]:
    """pass@k and coverage@k of the arms against k at the compared step, where every run has its problems' counts."""
    comparison, step = findings.comparison, findings.step
    records = {arm.name: [list(findings.problems(run, step).values()) for run in arm.runs] for arm in comparison.arms}
    everything = [rows for of_arm in records.values() for rows in of_arm]
    if not all(everything):
        return []
    charts = [_against_k("pass", "share of problems", comparison, records, pass_curve)]
    if all(row.get("num_modes") for rows in everything for row in rows):
        charts.append(_against_k("coverage", "share of right answers", comparison, records, coverage_curve))
    return [chart for chart in charts if len(chart.lines[0].x) > 1]


def _against_k(
    measure: str, unit: str, comparison: Comparison, records: Mapping[str, Sequence[list]], curve: Callable
) -> Chart:
    curves = {name: [dict(zip(*curve(rows), strict=True)) for rows in of_arm] for name, of_arm in records.items()}
    ks = sorted(set.intersection(*(set(each) for of_arm in curves.values() for each in of_arm)))
    places = np.array(ks, dtype=np.float64)
    lines = [
        seed_line(arm, places, np.array([[each[k] for k in ks] for each in curves[arm.name]]), has_dots=len(ks) <= 8)
        for arm in comparison.arms
    ]
    title = f"{measure}@k against k"
    return Chart(f"{measure}_by_k", title, unit, lines, top=1.0, x_name="k", is_log_x=True)

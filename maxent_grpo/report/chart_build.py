"""From the lines of metrics.jsonl and the table of charts to charts: what moved is drawn, what did not is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from maxent_grpo.report.chart_table import CONTROLLER_FAMILY, ChartSpec, SectionSpec, Trace
from maxent_grpo.report.read import in_number_order, metric_series
from maxent_grpo.report.scale import short
from maxent_grpo.report.series import DrawnSeries, drawn_series
from maxent_grpo.report.svg import NUM_COLORS, Chart, Line

Rows = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Drawn:
    """The charts of a section, and the sentences about what is not drawn."""

    charts: list[Chart] = field(default_factory=list)
    constant: list[str] = field(default_factory=list)
    """``label value`` of every metric that never moved."""
    missing: list[str] = field(default_factory=list)
    """Titles of charts none of whose metrics was recorded."""
    notes: list[str] = field(default_factory=list)
    """What limits the charts."""
    is_merged: bool = False
    """Whether a line's points stand for several steps each."""


def build_section(spec: SectionSpec, rows: Rows, names: Sequence[str]) -> Drawn:
    """The charts of a section; ``names`` are all metrics that the lines hold."""
    drawn = Drawn()
    charts = spec.charts
    if spec.key == "optimisation":
        charts = (*charts, *_other_controller_charts(spec, names))
    for chart in charts:
        _build(chart, rows, names, drawn)
    return drawn


def all_names(rows: Rows) -> list[str]:
    """Every metric that a line holds, numbers in names in the order of their values."""
    names = {name for row in rows for name in row} - {"step"}
    return sorted(names, key=in_number_order)


def traces_of(spec: ChartSpec, names: Sequence[str]) -> Iterator[Trace]:
    """The recorded metrics that the chart draws, families spelt out."""
    for trace in spec.traces:
        if "*" not in trace.metric:
            if trace.metric in names:
                yield trace
            continue
        prefix = trace.metric.partition("*")[0]
        for name in names:
            if name.startswith(prefix):
                yield Trace(name, trace.label.replace("*", name.removeprefix(prefix)), trace.is_dashed)


def _build(spec: ChartSpec, rows: Rows, names: Sequence[str], drawn: Drawn) -> None:
    traces = list(traces_of(spec, names))
    if not traces:
        drawn.missing.append(spec.title)
        return
    if len(traces) < spec.least:
        return
    read = counted if spec.is_count else metric_series
    series = {trace: read(rows, trace.metric) for trace in traces}
    moving = [trace for trace, (_, values) in series.items() if min(values) < max(values)]
    still = [trace for trace in traces if trace not in moving and (not moving or _is_idle(trace, series[trace][1]))]
    if spec.band is not None and not moving and _spans(spec.band, rows):
        moving, still = still, []
    drawn.constant += [_constant(spec, trace, series[trace]) for trace in still]
    lines = []
    for color, trace in enumerate(trace for trace in traces if trace not in still):
        steps, values = series[trace]
        points = drawn_series(steps, values, is_noisy=spec.is_noisy)
        drawn.is_merged |= points.is_merged
        lines.append(_line(spec, trace, points, color % NUM_COLORS))
    if lines:
        if spec.band is not None:
            lines[0] = _with_band(lines[0], spec.band, rows)
        drawn.charts.append(
            Chart(spec.key, spec.title, spec.unit, lines, from_zero=spec.from_zero, top=spec.top)
        )  # fmt: skip


def counted(rows: Rows, name: str) -> tuple[list[int], list[float]]:
    """Steps and values of a count that a line leaves out when it is 0; evaluations before training do not count."""
    trained = [row for row in rows if row["step"] > 0]
    return [int(row["step"]) for row in trained], [float(row.get(name, 0.0)) for row in trained]


def _is_idle(trace: Trace, values: Sequence[float]) -> bool:
    """Whether a flat trace says nothing beside those that move; a target does."""
    return not any(values) and not trace.is_dashed


def _spans(band: tuple[str, str], rows: Rows) -> bool:
    (_, low), (_, high) = (metric_series(rows, name) for name in band)
    return bool(low) and bool(high) and min(low) < max(high)


def _constant(spec: ChartSpec, trace: Trace, series: tuple[list[int], list[float]]) -> str:
    steps, values = series
    label = trace.label if trace.label.lower() == spec.title.lower() else f"{spec.title}: {trace.label}"
    once = f" (recorded once, at step {steps[0]})" if len(steps) == 1 else ""
    return f"{label} = {short(values[0])}{once}"


def _line(spec: ChartSpec, trace: Trace, points: DrawnSeries, color: int) -> Line:
    is_sparse = not spec.is_noisy and len(points.steps) <= 30
    is_smoothed = not points.is_merged and not np.array_equal(points.middle, points.low)
    return Line(
        label=trace.label,
        x=points.steps,
        y=points.middle,
        color=color,
        low=points.low if points.is_merged else None,
        high=points.high if points.is_merged else None,
        raw=((points.steps, points.low),) if is_smoothed else (),
        is_dashed=trace.is_dashed,
        has_dots=is_sparse,
    )


def _with_band(line: Line, band: tuple[str, str], rows: Rows) -> Line:
    """The line with the range between two metrics shaded; they are recorded at the steps of the line's own metric."""
    found = [metric_series(rows, name) for name in band]
    if any(not values for _, values in found):
        return line
    low, high = (drawn_series(steps, values, is_noisy=False) for steps, values in found)
    if len(low.steps) != len(line.x) or len(high.steps) != len(line.x):
        return line
    return Line(line.label, line.x, line.y, line.color, low=low.low, high=high.high)


def _other_controller_charts(spec: SectionSpec, names: Sequence[str]) -> list[ChartSpec]:
    """A chart for every quantity that a controller measures, with its target, and one for whatever else it records."""
    known = {trace.metric for chart in spec.charts for trace in chart.traces}
    others = [name for name in names if name.startswith(CONTROLLER_FAMILY) and name not in known]
    charts: dict[str, ChartSpec] = {}
    for name in others:
        own = name.removeprefix(CONTROLLER_FAMILY)
        kind, _, quantity = own.partition("_")
        if kind not in ("measured", "target"):
            charts[own] = ChartSpec(own, own.replace("_", " "), "of the step", (Trace(name, own.replace("_", " ")),))
        elif quantity not in charts:
            pair = (
                Trace(f"{CONTROLLER_FAMILY}measured_{quantity}", "measured"),
                Trace(f"{CONTROLLER_FAMILY}target_{quantity}", "target", is_dashed=True),
            )
            charts[quantity] = ChartSpec(
                f"target_{quantity}", f"{quantity.replace('_', ' ')} against its target", "as measured", pair
            )
    return list(charts.values())

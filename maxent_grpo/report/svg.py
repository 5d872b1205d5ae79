"""Line charts as inline SVG: drawn by hand, coloured by the page's own style sheet, sharp at any width.

Colours are classes (``c0`` to ``c7``), so that light and dark pages give each its own. Titles, legends and values are HTML
around the drawing, where they wrap; only the tick labels are inside.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from maxent_grpo.report.scale import Axis, short, step_ticks, tick_texts, ticks, value_range
from maxent_grpo.report.series import Floats

WIDTH, HEIGHT = 420, 210
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 22
NUM_COLORS = 8
NUM_DASHES = 6


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: its points, what stands faint behind it, and how it looks."""

    label: str
    x: Floats
    y: Floats
    color: int = 0
    low: Floats | None = None
    """Lower end of a shaded range, together with ``high``."""
    high: Floats | None = None
    raw: Sequence[tuple[Floats, Floats]] = ()
    """What the line was made of, drawn thin: unsmoothed points, or one series a seed."""
    is_dashed: bool = False
    dash: int = 0
    """Pattern that tells lines apart without colour, 0 (none) to NUM_DASHES - 1."""
    has_dots: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """What one figure shows."""

    key: str
    title: str
    unit: str
    lines: Sequence[Line]
    is_stacked: bool = False
    from_zero: bool = False
    top: float | None = None
    """Natural upper limit, such as 1 for a share."""
    x_name: str = "step"
    is_log_x: bool = False


def look(line: Line) -> str:
    """The classes of a line's colour and pattern."""
    return f"c{line.color}{' dashed' if line.is_dashed else ''}{f' dash{line.dash}' if line.dash else ''}"


def number(value: float) -> str:
    """A coordinate to a tenth."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _path(x: Sequence[float], y: Sequence[float]) -> str:
    return "M" + "L".join(f"{number(a)} {number(b)}" for a, b in zip(x, y, strict=True))


def _area(x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    back = [f"{number(a)} {number(b)}" for a, b in zip(reversed(x), reversed(low), strict=True)]
    return _path(x, high) + "L" + "L".join(back) + "Z"


def _axes(chart: Chart, lines: Sequence[Line]) -> tuple[Axis, Axis]:
    xs = np.concatenate([line.x for line in lines])
    parts: list[Floats] = []
    for line in lines:
        parts += [part for part in (line.y, line.low, line.high) if part is not None]
        parts += [y for _, y in line.raw]
    low, high = value_range(np.concatenate(parts).tolist(), from_zero=chart.from_zero, top=chart.top)
    across = Axis(float(xs.min()), float(xs.max()), LEFT, WIDTH - RIGHT, chart.is_log_x)
    return across, Axis(low, high, HEIGHT - BOTTOM, TOP)


def _grid(chart: Chart, across: Axis, up: Axis) -> list[str]:
    values = ticks(up.low, up.high, 5)
    parts = []
    for value, text in zip(values, tick_texts(values), strict=True):
        y = number(up.place(value))
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y}" dy=".32em" text-anchor="end">{text}</text>')
    parts.append(f'<path class="base" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    if chart.is_log_x:
        steps = [2.0**power for power in range(11) if across.low <= 2.0**power <= across.high]
    else:
        steps = step_ticks(across.low, across.high)
    parts.append(f'<text class="tick" x="1" y="{HEIGHT - BOTTOM + 15}">{escape(chart.x_name)}</text>')
    for step, text in zip(steps, tick_texts(steps), strict=True):
        x = across.place(step)
        anchor = "end" if x > WIDTH - RIGHT - 12 and len(text) > 2 else "middle"
        parts.append(
            f'<text class="tick" x="{number(x)}" y="{HEIGHT - BOTTOM + 15}" text-anchor="{anchor}">{text}</text>'
        )
    return parts


def _stacked(lines: Sequence[Line]) -> list[Line]:
    """Each line lifted onto the sum of those before it, shaded from there."""
    floor = np.zeros_like(lines[0].y)
    lifted = []
    for line in lines:
        lifted.append(Line(line.label, line.x, floor + line.y, line.color, low=floor, high=floor + line.y))
        floor = floor + line.y
    return lifted


def _draw_line(chart: Chart, line: Line, across: Axis, up: Axis) -> list[str]:
    x, y = [across.place(v) for v in line.x.tolist()], [up.place(v) for v in line.y.tolist()]
    parts = []
    if line.low is not None and line.high is not None and len(x) > 1:
        low, high = [up.place(v) for v in line.low.tolist()], [up.place(v) for v in line.high.tolist()]
        parts.append(
            f'<path class="{"layer" if chart.is_stacked else "band"} c{line.color}" d="{_area(x, low, high)}"/>'
        )
    for raw_x, raw_y in line.raw if len(x) > 1 else ():
        path = _path([across.place(v) for v in raw_x.tolist()], [up.place(v) for v in raw_y.tolist()])
        parts.append(f'<path class="raw c{line.color}" d="{path}"/>')
    if len(x) > 1 and not chart.is_stacked:
        parts.append(f'<path class="line {look(line)}" d="{_path(x, y)}"/>')
    if line.has_dots or len(x) == 1:
        dots = "".join(f'<circle cx="{number(a)}" cy="{number(b)}" r="2.6"/>' for a, b in zip(x, y, strict=True))
        parts.append(f'<g class="dots c{line.color}">{dots}</g>')
    return parts


def drawing(chart: Chart) -> str:
    """The SVG element of a chart with at least one line."""
    lines = _stacked(chart.lines) if chart.is_stacked else list(chart.lines)
    across, up = _axes(chart, lines)
    parts = _grid(chart, across, up)
    # the first line is the one that matters most, and lies on top
    for line in lines if chart.is_stacked else reversed(lines):
        parts += _draw_line(chart, line, across, up)
    label = escape(f"{chart.title}, {chart.unit}: {', '.join(line.label for line in chart.lines)}")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}'
        f'<path class="cross" d="M0 {TOP}V{HEIGHT - BOTTOM}"/></svg>'
    )


def _points(chart: Chart) -> str:
    """What the page's script needs to read values off: axis limits, and the points of each line."""
    across, _ = _axes(chart, chart.lines)
    lines = [[_rounded(line.x), _rounded(line.y)] for line in chart.lines]
    value = {"low": across.low, "high": across.high, "log": chart.is_log_x, "name": chart.x_name, "lines": lines}
    return escape(json.dumps(value, separators=(",", ":"), allow_nan=False))


def _rounded(values: Floats) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


def figure(chart: Chart, suffix: str = "") -> str:
    """A chart with its title, unit and a legend that holds the last value of each line; ``suffix`` makes its id unique."""
    entries = "".join(
        f'<li><i class="swatch {look(line)}"></i>{escape(line.label)} <b>{escape(short(float(line.y[-1])))}</b></li>'
        for line in chart.lines
    )
    return (
        f'<figure class="chart" id="chart-{escape(chart.key + suffix)}" data-points="{_points(chart)}">'
        f'<figcaption><h3>{escape(chart.title)}</h3><span class="unit">{escape(chart.unit)}</span></figcaption>'
        f'<ul class="legend">{entries}<li class="at"></li></ul>{drawing(chart)}</figure>'
    )


def sparkline(values: Sequence[float], color: int) -> str:
    """A line without axes for a card."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    across, up = Axis(0, len(values) - 1, 0, 100), Axis(low, high, 22, 3)
    path = _path([across.place(index) for index in range(len(values))], [up.place(value) for value in values])
    return f'<svg class="spark" viewBox="0 0 100 25" preserveAspectRatio="none" aria-hidden="true"><path class="line c{color}" d="{path}"/></svg>'

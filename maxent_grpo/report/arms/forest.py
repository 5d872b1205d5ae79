"""Means with their intervals beneath each other: one row an arm, its name and numbers above its own line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from maxent_grpo.report.scale import Axis, tick_texts, ticks, value_range
from maxent_grpo.report.svg import WIDTH, number
from maxent_grpo.stats.compare import Interval

LEFT, RIGHT, TOP, ROW, BOTTOM = 18, 18, 4, 36, 22
TEXT, TEXT_WIDTH = 17, 6.7
"""Height of a row's text above its line, and about what a character takes of the width."""
MARKS = (
    "M-4.5 0A4.5 4.5 0 1 0 4.5 0A4.5 4.5 0 1 0 -4.5 0Z",
    "M-4 -4H4V4H-4Z",
    "M0 -5.5L5.5 0L0 5.5L-5.5 0Z",
    "M0 -5L5 4H-5Z",
    "M0 5L5 -4H-5Z",
    "M-1.7 -5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7Z",
)
"""Shapes of the means, by which arms are told apart without colour."""


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One mean with its interval, NaN where there is none, and the seeds it is made of."""

    label: str
    mean: Interval
    text: str
    """The numbers, in words."""
    color: int
    points: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Forest:
    """What one figure shows."""

    key: str
    title: str
    unit: str
    rows: Sequence[ForestRow]
    has_zero: bool = False
    """Draw the line of no difference."""
    margin: float = 0.0
    """Shade what is within this distance of zero."""


def forest_figure(forest: Forest) -> str:
    """The figure as HTML around an SVG drawing of a row's height for each mean."""
    return (
        f'<figure class="chart forest" id="chart-{escape(forest.key)}"><figcaption><h3>{escape(forest.title)}</h3>'
        f'<span class="unit">{escape(forest.unit)}</span></figcaption>{_drawing(forest)}</figure>'
    )


def _axis(forest: Forest) -> Axis:
    values = [value for row in forest.rows for value in (row.mean.mean, row.mean.low, row.mean.high, *row.points)]
    values = [value for value in values if not math.isnan(value)]
    if forest.has_zero:
        values += [0.0, -forest.margin, forest.margin]
    low, high = min(values), max(values)
    if low >= 0.0 and not forest.has_zero:
        low, high = value_range(values, from_zero=False, top=1.0 if high <= 1.0 else None)
    else:
        room = (high - low) * 0.06 or 0.01
        low, high = low - room, high + room
    return Axis(low, high, LEFT, WIDTH - RIGHT)


def _drawing(forest: Forest) -> str:
    across = _axis(forest)
    floor = TOP + ROW * len(forest.rows)
    values = ticks(across.low, across.high, 5)
    parts = []
    if forest.margin:
        left, right = (number(across.place(side * forest.margin)) for side in (-1, 1))
        parts.append(f'<path class="margin" d="M{left} {TOP}H{right}V{floor}H{left}Z"/>')
    for value, text in zip(values, tick_texts(values), strict=True):
        x = number(across.place(value))
        kind = "zero" if forest.has_zero and value == 0 else "grid"
        # through the lines, not through the names and numbers above them
        strokes = "".join(f"M{x} {TOP + ROW * place + TEXT}v{ROW - TEXT}" for place in range(len(forest.rows)))
        parts.append(f'<path class="{kind}" d="{strokes}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{floor + 14}" text-anchor="middle">{text}</text>')
    parts.append(f'<path class="base" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>')
    for place, row in enumerate(forest.rows):
        parts += _row(row, across, TOP + ROW * place)
    described = "; ".join(f"{row.label} {row.text}" for row in forest.rows)
    label = escape(f"{forest.title}, {forest.unit}: {described}")
    return f'<svg viewBox="0 0 {WIDTH} {floor + BOTTOM}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _row(row: ForestRow, across: Axis, top: float) -> list[str]:
    """Name at the left and numbers at the right above the line; the name gives way where both do not fit."""
    y = top + 25
    room = (WIDTH - LEFT - RIGHT) / TEXT_WIDTH - len(row.text) - 2
    name = row.label if len(row.label) <= room else f"{row.label[: max(int(room) - 1, 6)]}…"
    color = f"c{row.color % 8}"
    parts = [
        f'<text class="name" x="{LEFT}" y="{top + 13}">{escape(name)}</text>',
        f'<text class="name number" x="{WIDTH - RIGHT}" y="{top + 13}" text-anchor="end">{escape(row.text)}</text>',
    ]
    if not math.isnan(row.mean.low):
        low, high = (number(across.place(value)) for value in (row.mean.low, row.mean.high))
        parts.append(
            f'<path class="whisker {color}" d="M{low} {y}H{high}M{low} {y - 4}V{y + 4}M{high} {y - 4}V{y + 4}"/>'
        )
    parts += [f'<path class="seed {color}" d="M{number(across.place(value))} {y - 6}v12"/>' for value in row.points]
    x = number(across.place(row.mean.mean))
    parts.append(f'<path class="mean {color}" transform="translate({x} {y})" d="{MARKS[row.color % len(MARKS)]}"/>')
    return parts

"""The time of a run by phase: where the seconds went in all, and step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from maxent_grpo.report.read import metric_series
from maxent_grpo.report.series import means, smoothed, stretches
from maxent_grpo.report.svg import NUM_COLORS, Chart, Line

Rows = Sequence[Mapping[str, Any]]

TOTAL_TIMES = ("step", "total")
"""Phases that contain the others, and so are not added to them."""

UNCLAIMED_TIME = "other"
"""What no phase claims; drawn together with the smallest phases."""

NUM_SHOWN = 6


def phases_of(rows: Rows) -> dict[str, tuple[list[int], list[float]]]:
    """Steps and seconds of every ``time/<phase>_seconds``, without those that contain others."""
    names = {name for row in rows for name in row if name.startswith("time/") and name.endswith("_seconds")}
    phases = {name.removeprefix("time/").removesuffix("_seconds"): metric_series(rows, name) for name in sorted(names)}
    return {phase: series for phase, series in phases.items() if phase not in TOTAL_TIMES}


def aligned(series: tuple[list[int], list[float]], steps: Sequence[int]) -> np.ndarray:
    """Seconds at each of the steps, 0 where the phase has none."""
    values = dict(zip(*series, strict=True))
    return np.array([values.get(step, 0.0) for step in steps])


def shown_phases(rows: Rows) -> tuple[list[str], list[str]]:
    """The phases that take the most time, largest first, and the rest, which a picture adds up as other."""
    totals = {phase: sum(values) for phase, (_, values) in phases_of(rows).items()}
    ordered = sorted(totals, key=lambda phase: (-totals[phase], phase))
    named = [phase for phase in ordered if phase != UNCLAIMED_TIME]
    return named[:NUM_SHOWN], [phase for phase in ordered if phase not in named[:NUM_SHOWN]]


def phase_totals(rows: Rows) -> list[tuple[str, float]]:
    """Seconds of the whole run by phase, largest first, what is small added up as other."""
    phases = phases_of(rows)
    shown, rest = shown_phases(rows)
    totals = [(phase, sum(phases[phase][1])) for phase in shown]
    return [*totals, (UNCLAIMED_TIME, sum(sum(phases[phase][1]) for phase in rest))] if rest else totals


def phase_chart(rows: Rows) -> Chart | None:
    """Seconds of a step by phase, stacked and smoothed; None when fewer than two steps were timed.

    Phases of a few steps, such as evaluation, are left to the bar of the whole run.
    """
    timed = phases_of([row for row in rows if row["step"] > 0])
    most = max((len(found) for found, _ in timed.values()), default=0)
    phases = {phase: series for phase, series in timed.items() if len(series[0]) * 2 >= most}
    steps = sorted({step for found, _ in phases.values() for step in found})
    if len(steps) < 2:
        return None
    shown, rest = shown_phases(rows)
    groups = [*((phase, [phase]) for phase in shown), (UNCLAIMED_TIME, rest)]
    firsts = stretches(len(steps))
    places = means(np.asarray(steps, dtype=np.float64), firsts)
    lines = []
    for color, (name, members) in enumerate(groups):
        recorded = [aligned(phases[phase], steps) for phase in members if phase in phases]
        if recorded:
            seconds = np.sum(recorded, axis=0)
            lines.append(Line(name, places, means(smoothed(seconds.tolist()), firsts), color % NUM_COLORS))
    return Chart(
        "time",
        "Time of a step",
        "seconds, moving average, phases of most steps",
        lines,
        is_stacked=True,
        from_zero=True,
    )

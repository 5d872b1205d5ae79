"""Several runs in one figure: held-out measures, reward and entropy against the step, a colour for each label.

Runs with the same label (seeds of one method) share a colour: their mean is drawn, and the range from lowest to highest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from maxent_grpo.errors import DataError
from maxent_grpo.report.read import headline_measures, metric_series, read_identity, read_metrics
from maxent_grpo.report.series import smoothed
from maxent_grpo.report.style import GRID, INK, PALETTE, QUIET, label_lines, label_steps, panel_grid, style_axes
from maxent_grpo.stats.compare import Interval

Rows = Sequence[Mapping[str, Any]]

TRAINING_PANELS = (
    ("reward/mean", "Training reward", "mean of a step"),
    ("policy/entropy", "Policy entropy", "nats per token"),
)
NUM_COLUMNS = 3
PATTERNS: tuple[tuple[float, ...], ...] = ((), (4, 1.6), (1, 1.6), (6, 1.6, 1, 1.6))
"""Dashes and gaps, in widths of the line, that tell lines apart without colour."""
MOST_ARMS = 12
"""Most pairs of colour and pattern that differ."""


def _unit(measure: str) -> str:
    kind, k = measure.split("@")
    if kind == "coverage":
        return f"share of the right answers found in {k} samples"
    return "share of samples that are right" if k == "1" else f"share of prompts solved within {k} samples"


@dataclass(frozen=True, slots=True)
class Arm:
    """The runs that share a label, and their colour."""

    label: str
    color: str
    pattern: tuple[float, ...]
    runs: Sequence[Rows]

    @property
    def line_style(self) -> str | tuple[int, tuple[float, ...]]:
        """The pattern as matplotlib takes it."""
        return (0, self.pattern) if self.pattern else "-"

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps that every run of the arm has, and the values at them, [runs, steps]."""
        found = [dict(zip(*metric_series(rows, name), strict=True)) for rows in self.runs]
        steps = sorted(set.intersection(*(set(values) for values in found)))
        return np.array(steps, dtype=int), np.array([[values[step] for step in steps] for values in found])


@dataclass(frozen=True, slots=True)
class EffectPanel:
    """Differences from a baseline: for each label its mean with an interval, whose ends are NaN where it is not known."""

    key: str
    title: str
    unit: str
    rows: Mapping[str, Interval]


def default_labels(runs: Sequence[Path]) -> list[str]:
    """The method of each run; runs of one method and seed that would fall together are told apart by their folders."""
    identities = [read_identity(run) for run in runs]
    keys = [(identity.label, identity.seed) for identity in identities]
    return [
        identity.label if keys.count(key) == 1 else f"{identity.label} ({identity.folder})"
        for identity, key in zip(identities, keys, strict=True)
    ]


def _arms(runs: Sequence[Path], labels: Sequence[str], last_step: int | None) -> list[Arm]:
    names = list(dict.fromkeys(labels))
    if len(names) > MOST_ARMS:
        raise DataError(f"{len(names)} labels, but a figure tells {MOST_ARMS} apart: draw fewer runs at a time")
    rows = [[row for row in read_metrics(run) if last_step is None or row["step"] <= last_step] for run in runs]
    grouped = {name: [run for run, label in zip(rows, labels, strict=True) if label == name] for name in names}
    looks = [(PALETTE[place % len(PALETTE)], PATTERNS[place % len(PATTERNS)]) for place in range(len(names))]
    return [Arm(name, *look, grouped[name]) for name, look in zip(names, looks, strict=True)]


def _draw_arm(axes: Axes, arm: Arm, name: str, is_evaluation: bool) -> float | None:
    """Draw an arm's mean and range; returns the height at which the line ends, None without a common step."""
    steps, values = arm.series(name)
    if not len(steps):
        return None
    shown = values if is_evaluation else np.array([smoothed(run.tolist()) for run in values])
    mean = shown.mean(axis=0)
    if len(values) > 1:
        axes.fill_between(steps, shown.min(axis=0), shown.max(axis=0), color=arm.color, alpha=0.16, linewidth=0)
    elif not is_evaluation and len(steps) > 1:
        axes.plot(steps, values[0], color=arm.color, linewidth=0.6, alpha=0.22)
    marker = "o" if is_evaluation or len(steps) == 1 else None
    style = arm.line_style
    axes.plot(
        steps, mean, color=arm.color, linewidth=2.2, linestyle=style, marker=marker, markersize=4, label=arm.label
    )
    return float(mean[-1])


def _draw_panel(axes: Axes, arms: Sequence[Arm], name: str, is_evaluation: bool) -> None:
    labels = []
    for arm in arms:
        end = _draw_arm(axes, arm, name, is_evaluation)
        if end is not None:
            labels.append((end, f"{arm.label} {end:.2f}", arm.color))
    if is_evaluation:
        _draw_common_start(axes, [arm.series(name) for arm in arms])
    label_lines(axes, labels)


def _draw_effects(axes: Axes, panel: EffectPanel, arms: Mapping[str, Arm]) -> None:
    """One line beneath the other, each with its name and numbers above it, around the line of no difference."""
    style_axes(axes, panel.title, panel.unit)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.axvline(0.0, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    for place, (label, each) in enumerate(panel.rows.items()):
        color = arms[label].color
        axes.plot([each.mean], [-place], "o", color=color, markersize=6)
        axes.plot([each.low, each.high], [-place, -place], color=color, linewidth=2)
        text = f"{label}  {each.mean:+.3f}" + ("" if math.isnan(each.low) else f" [{each.low:.3f}, {each.high:.3f}]")
        axes.text(
            0.0,
            -place + 0.3,
            text,
            transform=axes.get_yaxis_transform(),
            size=8.5,
            weight="bold",
            color=color,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},  # the line of no difference may run behind it
        )
    axes.set_ylim(-len(panel.rows) + 0.4, 0.75)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.4g}")


def _draw_common_start(axes: Axes, series: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """A dotted line at the value that every arm starts from, if they start from one."""
    starts = [float(values[:, 0].mean()) for steps, values in series if len(steps)]
    if starts and max(starts) - min(starts) < 1e-9:
        first, last = axes.dataLim.intervalx
        axes.hlines(starts[0], first, last, color=QUIET, linewidth=1, linestyle=(0, (2, 3)), label="start")


def _draw_table(axes: Axes, arms: Sequence[Arm], measures: Sequence[str]) -> None:
    """The key of the figure: each label with its last values, the best in bold, beneath the values at the start."""
    axes.set_axis_off()
    # without an evaluation there is no measure, and the key has names alone
    columns = np.linspace(0.48, 1.0, len(measures)) if len(measures) > 1 else np.ones(len(measures))
    for column, name in zip(columns, measures, strict=True):
        axes.text(column, 0.93, name, ha="right", fontsize=9, color=QUIET, transform=axes.transAxes)
    ends = [[_mean_at(arm, name, -1) for name in measures] for arm in arms]
    lines: list[tuple[str, str, list[float | None], bool]] = []
    starts = [_mean_at(arms[0], name, 0) for name in measures]
    lines.append(("start", QUIET, starts, False))
    lines += [(_arm_name(arm), arm.color, values, True) for arm, values in zip(arms, ends, strict=True)]
    best = [max((value for value in column if value is not None), default=None) for column in zip(*ends, strict=True)]
    spacing = min(0.15, 0.8 / max(len(lines), 1))
    for index, (label, color, values, is_ranked) in enumerate(lines):
        height = 0.93 - spacing * (index + 1)
        axes.text(0.0, height, label, fontsize=10.5, fontweight="bold", color=color, transform=axes.transAxes)
        for column, value, top in zip(columns, values, best, strict=True):
            weight = "bold" if is_ranked and value is not None and value == top else "normal"
            text = "-" if value is None else f"{value:.3f}"
            axes.text(
                column, height, text, ha="right", fontsize=10.5, fontweight=weight, color=INK, transform=axes.transAxes
            )


def _arm_name(arm: Arm) -> str:
    return arm.label if len(arm.runs) == 1 else f"{arm.label}  ×{len(arm.runs)}"


def _mean_at(arm: Arm, measure: str, index: int) -> float | None:
    steps, values = arm.series(f"eval/{measure}")
    return float(values[:, index].mean()) if len(steps) else None


def comparison_figure(
    runs: Sequence[Path],
    labels: Sequence[str] | None = None,
    *,
    last_step: int | None = None,
    effects: Sequence[EffectPanel] = (),
) -> Figure:
    """Held-out pass@k and coverage@k, reward and entropy of several runs; each axes' label is its metric, or "table".

    Args:
        runs: run directories.
        labels: a label for each run, by default its method; runs with one label are averaged.
        last_step: leave out what came after it; by default nothing.
        effects: panels of differences with their intervals, drawn after the curves.

    Raises:
        DataError: no run is given, or a metrics.jsonl is missing or damaged, or there are more labels than colours.
    """
    if not runs:
        raise DataError("a comparison needs at least one run directory")
    arms = _arms(runs, default_labels(runs) if labels is None else labels, last_step)
    every_row = [row for arm in arms for rows in arm.runs for row in rows]
    measures = headline_measures(every_row)
    panels = [(f"eval/{name}", name, _unit(name), True) for name in measures]
    panels += [(*panel, False) for panel in TRAINING_PANELS if any(panel[0] in row for row in every_row)]
    num_panels = len(panels) + len(effects)
    num_rows = -(-(num_panels + 1) // NUM_COLUMNS)
    # with differences the first arm is what the other one is compared with
    named = [arm.label for arm in (reversed(arms) if effects else arms)]
    title = " against ".join(named) if len(named) < 3 else "Comparison of methods"
    reached = max((row["step"] for row in every_row), default=0)
    num_runs = f"{len(runs)} runs, " if len(runs) > len(arms) else ""
    subtitle = f"{num_runs}{reached} optimiser steps; pass and coverage on held-out prompts, dotted before training"
    figure, grid = panel_grid(num_rows, NUM_COLUMNS, title, subtitle, panel_height=2.3)
    for index, (name, heading, unit, is_evaluation) in enumerate(panels):
        axes = figure.add_subplot(grid[index // NUM_COLUMNS, index % NUM_COLUMNS], label=name)
        style_axes(axes, heading, unit)
        _draw_panel(axes, arms, name, is_evaluation)
        label_steps(axes)
    for index, effect in enumerate(effects, start=len(panels)):
        axes = figure.add_subplot(grid[index // NUM_COLUMNS, index % NUM_COLUMNS], label=effect.key)
        _draw_effects(axes, effect, {arm.label: arm for arm in arms})
    row, column = divmod(num_panels, NUM_COLUMNS)
    _draw_table(figure.add_subplot(grid[row, column:], label="table"), arms, measures)
    return figure

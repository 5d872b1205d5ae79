"""The panels of a run's picture: for each, which metrics it needs and how it draws them.

A panel that finds none of its metrics is left out, so that a picture shows what the run measured and nothing empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from maxent_grpo.report.phases import UNCLAIMED_TIME, aligned, phases_of
from maxent_grpo.report.read import headline_measures, metric_series
from maxent_grpo.report.scale import share
from maxent_grpo.report.series import smoothed
from maxent_grpo.report.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    QUIET,
    Label,
    draw_series,
    label_lines,
    limits_around,
    note_above,
    style_axes,
)
from maxent_grpo.report.svg import Chart

Rows = Sequence[Mapping[str, Any]]

NUM_TIME_PHASES = 5
COEFFICIENTS = ("tau", "beta", "kl_beta")
"""What a controller may adapt."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One small plot: ``columns`` of the grid wide; drawn when one of its metrics ``is_present``."""

    key: str
    is_present: Callable[[Rows], bool]
    draw: Callable[[Axes, Rows], None]
    columns: int = 1


def _has(*names: str) -> Callable[[Rows], bool]:
    return lambda rows: any(name in row for row in rows for name in names)


def _has_nonzero(*names: str) -> Callable[[Rows], bool]:
    return lambda rows: any(row.get(name, 0) != 0 for row in rows for name in names)


def _draw_evaluation(axes: Axes, rows: Rows) -> None:
    style_axes(
        axes,
        "Held-out evaluation",
        "pass@k: prompts solved within k samples, coverage@k: share of the right answers found",
    )
    labels: list[Label] = []
    lowest = 1.0
    for name, color in zip(headline_measures(rows), PALETTE, strict=False):
        steps, values = metric_series(rows, f"eval/{name}")
        lowest = min(lowest, *values)
        axes.plot(steps, values, "-o", color=color, linewidth=2.2, markersize=4, label=name)
        axes.plot(steps[:1], values[:1], "o", color="white", markeredgecolor=color, markeredgewidth=1.8, markersize=7)
        if len(steps) > 1:
            axes.hlines(values[0], steps[0], steps[-1], color=color, linewidth=1, linestyle=(0, (2, 3)), alpha=0.7)
        labels.append((values[-1], f"{name}  {values[-1]:.2f}", color))
    axes.set_ylim(max(0.0, np.floor((lowest - 0.05) * 10) / 10), 1.0)
    label_lines(axes, labels)


def _draw_reward(axes: Axes, rows: Rows) -> None:
    style_axes(axes, "Training reward", "mean of a step")
    steps, values = metric_series(rows, "reward/mean")
    draw_series(axes, steps, values, BLUE)


def _draw_entropy(axes: Axes, rows: Rows) -> None:
    style_axes(axes, "Policy entropy", "nats per token")
    steps, values = metric_series(rows, "policy/entropy")
    draw_series(axes, steps, values, PURPLE)
    axes.set_ylim(bottom=0)


def _draw_pair(axes: Axes, rows: Rows, left: tuple[str, str, bool], right: tuple[str, str, bool]) -> None:
    """Two quantities, (metric, label, is noisy), of different units: the second has an axis on the right in its colour."""
    pairs = [(*pair, color) for pair, color in ((left, BLUE), (right, ORANGE)) if _has(pair[0])(rows)]
    for index, (name, label, is_noisy, color) in enumerate(pairs):
        target = axes if index == 0 else axes.twinx()
        steps, values = metric_series(rows, name)
        draw_series(target, steps, values, color, label, is_noisy)
        target.set_ylim(0, max(*values, 1e-12) * (1.15 + 0.15 * index))
        target.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
        target.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
        target.tick_params(axis="y", colors=color, labelsize=8.5, length=0)
        if index:
            for spine in target.spines.values():
                spine.set_visible(False)
        note_above(axes, label, color, on_right=index == 1)


def _draw_weights(axes: Axes, rows: Rows) -> None:
    style_axes(axes, "Group weights")
    effective_size = ("weights/effective_size", "effective size [completions]", True)
    _draw_pair(axes, rows, effective_size, ("weights/entropy", "entropy [nats]", True))


def _draw_optimisation(axes: Axes, rows: Rows) -> None:
    style_axes(axes, "Optimisation")
    learning_rate = ("optim/learning_rate", "learning rate", False)
    _draw_pair(axes, rows, ("optim/gradient_norm", "gradient norm", True), learning_rate)


def _draw_named(axes: Axes, rows: Rows, names: Sequence[tuple[str, str]]) -> None:
    labels: list[Label] = []
    every_value: list[float] = []
    for (name, label), color in zip(names, PALETTE, strict=False):
        steps, values = metric_series(rows, name)
        if steps:
            draw_series(axes, steps, values, color, label)
            labels.append((float(np.mean(values[-max(1, len(values) // 25) :])), label, color))
            every_value += values
    axes.set_ylim(*limits_around([0.0, *every_value]))
    if len(labels) > 1:
        label_lines(axes, labels)


def _draw_kl(axes: Axes, rows: Rows) -> None:
    lines = [("policy/kl_to_reference", "reference"), ("weights/kl_to_policy", "w to p")]
    present = [line for line in lines if _has_nonzero(line[0])(rows)]
    if len(present) > 1:
        style_axes(axes, "KL divergence", "nats: reference per token, weights w to policy p per group")
    elif present == lines[:1]:
        style_axes(axes, "KL to the reference", "nats per token")
    else:
        style_axes(axes, "KL of weights to policy", "nats, mean over groups")
    _draw_named(axes, rows, present)


def _draw_clip(axes: Axes, rows: Rows) -> None:
    style_axes(axes, "Clipped ratios", "share of tokens")
    _draw_named(axes, rows, [("policy/clip_ratio_low_mean", "low"), ("policy/clip_ratio_high_mean", "high")])


def _draw_length(axes: Axes, rows: Rows) -> None:
    style_axes(axes, "Completion length", "tokens: mean of a step, shaded from shortest to longest")
    steps, values = metric_series(rows, "completion/mean_length")
    low, high = metric_series(rows, "completion/min_length"), metric_series(rows, "completion/max_length")
    top = max([*values, *high[1]], default=0.0)
    if steps == low[0] == high[0] and len(steps) > 1:
        axes.fill_between(steps, low[1], high[1], color=GREEN, alpha=0.16, linewidth=0)
    if steps:
        draw_series(axes, steps, values, GREEN)
        axes.set_ylim(0, top * 1.25 or 1.0)
    clipped_steps, clipped = metric_series(rows, "completion/clipped_ratio")
    if any(clipped):
        cut = float(np.mean(clipped[-max(1, len(clipped) // 25) :]))
        axes.annotate(
            f"{share(cut)} cut at the limit at step {clipped_steps[-1]}",
            (0.0, 0.93),
            xycoords="axes fraction",
            fontsize=8.5,
            color=QUIET,
        )


def _draw_controller(axes: Axes, rows: Rows) -> None:
    style_axes(axes, "Controller")
    _draw_named(axes, rows, [(f"controller/{name}", name) for name in COEFFICIENTS])


def _moves(*names: str) -> Callable[[Rows], bool]:
    return lambda rows: any(len({row[name] for row in rows if name in row}) > 1 for name in names)


def _draw_time(axes: Axes, rows: Rows) -> None:
    """Phases of every step stacked, smoothed; phases of a few steps (evaluation, checkpoint) are named with their sum."""
    phases = phases_of(rows)
    trained = phases_of([row for row in rows if row["step"] > 0]) or phases
    most = max(len(steps) for steps, _ in trained.values())
    regular = {phase: series for phase, series in trained.items() if len(series[0]) * 2 >= most}
    by_total = sorted(regular, key=lambda phase: -sum(regular[phase][1]))
    shown = [phase for phase in by_total if phase != UNCLAIMED_TIME][:NUM_TIME_PHASES]
    merged = [phase for phase in by_total if phase not in shown]
    steps = sorted({step for phase in by_total for step in regular[phase][0]})
    layers = [aligned(regular[phase], steps) for phase in shown]
    names = list(shown)
    if merged:
        layers.append(np.sum([aligned(regular[phase], steps) for phase in merged], axis=0))
        names.append("other")
    rare = [f"{phase} {sum(values):.0f} s" for phase, (_, values) in phases.items() if phase not in regular]
    besides = f"; besides, over the whole run: {', '.join(rare)}" if rare else ""
    style_axes(axes, "Time of a step", f"seconds{besides}")
    _draw_stack(axes, steps, layers, names)


def _draw_stack(axes: Axes, steps: Sequence[int], layers: Sequence[np.ndarray], names: Sequence[str]) -> None:
    averaged = [smoothed(layer.tolist()) for layer in layers]
    colors = [*PALETTE[: len(names)]] if len(names) <= len(PALETTE) else [*PALETTE, INK]
    if len(steps) == 1:
        floors = np.concatenate([[0.0], np.cumsum([layer[0] for layer in averaged])])
        for layer, floor, color in zip(averaged, floors, colors, strict=False):
            axes.bar(steps, layer, bottom=floor, width=0.5, color=color, alpha=0.85)
    else:
        axes.stackplot(steps, *averaged, colors=colors, alpha=0.85, linewidth=0)
    top = np.sum(averaged, axis=0)
    axes.set_ylim(0, float(top.max()) * 1.12 or 1.0)
    middles = np.cumsum([layer[-1] for layer in averaged]) - np.array([layer[-1] for layer in averaged]) / 2
    texts = [f"{name}  {layer.mean():.2g} s" for name, layer in zip(names, layers, strict=True)]
    label_lines(axes, list(zip(middles.tolist(), texts, colors, strict=False)), size=8.5)


def panel_against_k(chart: Chart) -> Panel:
    """A panel of success against the number of samples, start and end."""

    def draw(axes: Axes, rows: Rows) -> None:
        style_axes(axes, chart.title, f"{chart.unit} solved within k samples")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("k", fontsize=8.5, color=QUIET, labelpad=4)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        for line, color in zip(chart.lines, (QUIET, BLUE) if len(chart.lines) > 1 else (BLUE,), strict=True):
            axes.plot(line.x, line.y, color=color, linewidth=2.2, linestyle="--" if line.is_dashed else "-")
        highest = max(float(line.y[-1]) for line in chart.lines)
        for line, color in zip(reversed(chart.lines), (BLUE, QUIET), strict=False):
            end = (float(line.x[-1]), float(line.y[-1]))
            lift = (0, 6) if end[1] == highest else (0, -13)  # the upper line's name above it, the lower one's below
            axes.annotate(
                line.label, end, xytext=lift, textcoords="offset points", ha="right", size=9, weight="bold", color=color
            )
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_ylim(top=1.0)

    return Panel(f"{chart.key}", lambda rows: True, draw)


PANELS = (
    Panel("evaluation", lambda rows: bool(headline_measures(rows)), _draw_evaluation, columns=2),
    Panel("reward", _has("reward/mean"), _draw_reward),
    Panel("entropy", _has("policy/entropy"), _draw_entropy),
    Panel("weights", _has("weights/effective_size", "weights/entropy"), _draw_weights),
    Panel("controller", _moves(*(f"controller/{name}" for name in COEFFICIENTS)), _draw_controller),
    Panel("kl", _has_nonzero("policy/kl_to_reference", "weights/kl_to_policy"), _draw_kl),
    Panel("clip", _has_nonzero("policy/clip_ratio_low_mean", "policy/clip_ratio_high_mean"), _draw_clip),
    Panel("optimisation", _has("optim/gradient_norm", "optim/learning_rate"), _draw_optimisation),
    Panel("length", _has("completion/mean_length"), _draw_length),
    Panel("time", lambda rows: bool(phases_of(rows)), _draw_time),
)
"""Every panel, in the order in which they are laid out."""

"""The picture of an evaluation of its own: success against the number of samples, with its intervals, one colour a model.

Reads evaluation.json alone. The horizontal axis is in doublings of k, so that a straight line gains as much from 1 sample to
2 as from 16 to 32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from maxent_grpo.errors import DataError
from maxent_grpo.report.read import EVALUATION_FILE, EVALUATION_PICTURES
from maxent_grpo.report.scale import short
from maxent_grpo.report.style import PALETTE, QUIET, Label, label_lines, new_figure, panel_grid, save_figure, style_axes

PANELS = (
    ("pass", "pass@k", "share of problems solved by one of k samples"),
    ("maj", "maj@k", "share of problems whose most frequent answer of k is right"),
    ("coverage", "coverage@k", "share of a problem's right answers found by k samples"),
    ("distinct", "distinct@k", "different right answers found by k samples"),
)
"""Measure, title, meaning; distinct@k stands in where the number of right answers is not known."""
LEGEND_WIDTH = 90
"""Most characters in a line of the legend."""

Entry = Mapping[str, Any]


def read_evaluation(folder: Path) -> dict[str, Any]:
    """The content of a folder's evaluation.json.

    Raises:
        DataError: there is none, or it is damaged.
    """
    path = folder / EVALUATION_FILE
    if not path.is_file():
        raise DataError(f"{path} does not exist: is {folder} the output of an evaluation?")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}): it was changed by hand or damaged") from error
    if not isinstance(content, dict) or "models" not in content:
        raise DataError(f"{path} is not the record of an evaluation")
    return content


def draw_evaluation(folder: Path) -> list[Path]:
    """Draw evaluation.png and evaluation.svg from a folder's evaluation.json; returns their paths."""
    figure = evaluation_figure(read_evaluation(folder))
    return [save_figure(figure, folder / name) for name in EVALUATION_PICTURES]


def evaluation_figure(evaluation: Entry) -> Figure:
    """The figure; each axes' label is its measure."""
    models: Sequence[Entry] = evaluation["models"]
    present = [panel for panel in PANELS if any(panel[0] in model["curves"] for model in models)]
    if len(present) == len(PANELS):
        present.pop()
    title, subtitle = _titles(evaluation)
    if not present:
        return new_figure(8, 1.6, title, "nothing to draw: no figure at any k was recorded")
    figure, grid = panel_grid(1, len(present), title, subtitle, panel_height=3.0)
    if len(models) > 1:
        _legend(figure, models)
    for column, (measure, name, meaning) in enumerate(present):
        axes = figure.add_subplot(grid[0, column], label=measure)
        style_axes(axes, name, meaning)
        _draw(axes, measure, models)
    return figure


def _draw(axes: Axes, measure: str, models: Sequence[Entry]) -> None:
    labels: list[Label] = []
    shown = [(model, color) for model, color in zip(models, _colors(models), strict=True) if measure in model["curves"]]
    for model, color in reversed(shown):  # the first model lies on top
        curve = model["curves"][measure]
        doublings = np.log2(curve["k"])
        if None not in curve["low"]:
            axes.fill_between(doublings, curve["low"], curve["high"], color=color, alpha=0.16, linewidth=0)
        axes.plot(doublings, curve["mean"], "-o", color=color, linewidth=2.0, markersize=3.5, clip_on=False)
        last = f"k={curve['k'][-1]}  {curve['mean'][-1]:.3g}" if len(models) == 1 else f"{curve['mean'][-1]:.3g}"
        labels.append((curve["mean"][-1], last, color))
        greedy = model["figures"].get("greedy")
        if greedy is not None and measure in ("pass", "maj"):
            axes.hlines(greedy["mean"], 0, doublings[-1], color=color, linewidth=1.2, linestyle=(0, (4, 3)))
            if len(models) == 1:
                labels.append((greedy["mean"], f"greedy  {greedy['mean']:.3g}", color))
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), high if measure == "distinct" else min(1.03, high))
    label_lines(axes, labels)
    axes.xaxis.set_major_formatter(lambda value, _: f"{2**value:g}")
    axes.set_xlabel("k, samples of a problem", fontsize=8.5, color=QUIET, labelpad=4)


def _legend(figure: Figure, models: Sequence[Entry]) -> None:
    """The models' names in their colours, in a line between subtitle and panels."""
    width, height = figure.get_size_inches()
    room = LEGEND_WIDTH // len(models)
    at = 0.16
    for model, color in zip(models, _colors(models), strict=True):
        label = str(model["label"])
        text = label if len(label) <= max(room, 12) else f"{label[: max(room, 12) - 1]}…"
        figure.text(at / width, 1 - 0.74 / height, f"● {text}", fontsize=10, fontweight="bold", color=color, va="top")
        at += 0.095 * len(text) + 0.45


def _colors(models: Sequence[Entry]) -> list[str]:
    return [PALETTE[place % len(PALETTE)] for place in range(len(models))]


def _titles(evaluation: Entry) -> tuple[str, str]:
    models, sampling = evaluation["models"], evaluation["sampling"]
    rows = sorted({model["rows"] for model in models})
    problems = f"{rows[0]}" if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
    kind = "held-out" if evaluation["split"] == "eval" else "training"
    title = f"{evaluation['name']} on {evaluation['data']}: {problems} {kind} problems"
    has_greedy = any("greedy" in model["figures"] for model in models)
    parts = [
        f"{evaluation['num_samples']} samples each, temperature {short(sampling['temperature'])}",
        f"band: {evaluation['interval']['level']:.0%} bootstrap interval over problems",
        *(["dashed: greedy"] if has_greedy else []),
    ]
    return title, "   ·   ".join(parts)

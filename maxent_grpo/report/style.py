"""The look of every figure: colours that colour-blind readers can tell apart, quiet axes, labels beside their lines.

Works on given axes only; touches no global state of matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import MaxNLocator

from maxent_grpo.report.atomic import write_atomically
from maxent_grpo.report.series import smoothed

BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072B2", "#D55E00", "#009E73", "#A8568A", "#56B4E9", "#B7791F"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER)
"""After Okabe and Ito; the order keeps neighbours apart in hue and in lightness."""
INK, QUIET, GRID = "#1F2933", "#66727F", "#E4E8EC"

Label = tuple[float, str, str]
"""(height in data units, text, colour) of a line's name."""


def style_axes(axes: Axes, title: str, unit: str = "") -> None:
    """Title with its unit on the line beneath, horizontal grid, no box."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=19)
    if unit:
        note_above(axes, unit, QUIET)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#B8C0C8")
    axes.tick_params(labelsize=8.5, colors=QUIET, length=0, pad=4)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")


def note_above(axes: Axes, text: str, color: str, on_right: bool = False) -> None:
    """A small line between title and plot, at its left or right end."""
    axes.annotate(
        text,
        (1.0 if on_right else 0.0, 1.0),
        xycoords="axes fraction",
        xytext=(0, 7),
        textcoords="offset points",
        ha="right" if on_right else "left",
        fontsize=8.5,
        color=color,
        annotation_clip=False,
    )


def label_steps(axes: Axes) -> None:
    """Name the horizontal axis."""
    axes.set_xlabel("optimiser step", fontsize=8.5, color=QUIET, labelpad=4)


def draw_series(
    axes: Axes, steps: Sequence[int], values: Sequence[float], color: str, label: str = "", is_noisy: bool = True
) -> None:
    """A measured series: its moving average, with the raw values faint behind if it is noisy; a lone value as a dot."""
    if len(steps) == 1:
        axes.plot(steps, values, "o", color=color, markersize=6, label=label)
        axes.set_xlim(steps[0] - 1, steps[0] + 1)
        return
    averaged = smoothed(values) if is_noisy else np.asarray(values, dtype=float)
    if not np.array_equal(averaged, np.asarray(values, dtype=float)):
        axes.plot(steps, values, color=color, linewidth=0.7, alpha=0.28)
    axes.plot(steps, averaged, color=color, linewidth=1.9, label=label, solid_capstyle="round")


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights moved apart to at least ``gap``, each cluster about its own middle, within [0, 1] if they fit."""
    spread = list(heights)
    for _ in range(60):
        for index in range(1, len(spread)):
            overlap = gap - (spread[index] - spread[index - 1])
            if overlap > 0:
                spread[index - 1] -= overlap / 2
                spread[index] += overlap / 2
    lift = max(0.0, -spread[0]) - max(0.0, spread[-1] - 1.0)
    return [height + lift for height in spread]


def label_lines(axes: Axes, labels: Sequence[Label], size: float = 9) -> None:
    """Write each name beside the end of its line, pushed apart where they would overlap.

    The horizontal axis is lengthened to make room inside the plot; its ticks end with the data.
    """
    if not labels:
        return
    (low, high), (first, last) = axes.get_ylim(), axes.dataLim.intervalx
    box, (width, height) = axes.get_position(), figure_size(axes)
    width_points = box.width * width * 72
    text_points = max(len(text) for _, text, _ in labels) * size * 0.62 + 8
    share = min(text_points / width_points, 0.6)
    span = max(last - first, 1.0)
    axes.set_xlim(first - 0.02 * span, last + span * (share / (1 - share) + 0.01))
    locator = MaxNLocator(nbins=5, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
    axes.set_xticks([tick for tick in locator.tick_values(first, last) if first <= tick <= last])
    gap = 1.35 * size / (box.height * height * 72)
    ordered = sorted(((value - low) / (high - low), text, color) for value, text, color in labels)
    heights = _spread([height for height, _, _ in ordered], gap)
    for position, (_, text, color) in zip(heights, ordered, strict=True):
        axes.annotate(
            text,
            (last, position),
            xycoords=("data", "axes fraction"),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=color,
            fontweight="bold",
        )


def figure_size(axes: Axes) -> tuple[float, float]:
    """Width and height of the figure that holds the axes [inches]."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes are drawn on a figure"
    width, height = figure.get_size_inches()
    return float(width), float(height)


def limits_around(values: Sequence[float], padding: float = 0.08) -> tuple[float, float]:
    """Axis limits with room above and below; a flat series gets room in proportion to its height."""
    low, high = min(values), max(values)
    room = (high - low) * padding or abs(high) * 0.1 or 0.1
    return low - room, high + room


def new_figure(width: float, height: float, title: str, subtitle: str) -> Figure:
    """A white figure with a canvas of its own, a title line and a quieter one beneath."""
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.16 / width, 1 - 0.16 / height, title, fontsize=15, fontweight="bold", color=INK, va="top")
    figure.text(0.16 / width, 1 - 0.47 / height, subtitle, fontsize=10, color=QUIET, va="top")
    return figure


def panel_grid(
    num_rows: int, num_columns: int, title: str, subtitle: str, panel_height: float = 1.85
) -> tuple[Figure, GridSpec]:
    """A figure of equal panels of that height [inches], 13 inches wide in all, with fixed room for titles and ticks.

    Fixed margins rather than a layout engine: names stand inside the axes, and a run redraws at half the cost.
    """
    gap, top, bottom, width = 0.95, 1.42, 0.55, 13.0
    height = top + num_rows * panel_height + (num_rows - 1) * gap + bottom
    figure = new_figure(width, height, title, subtitle)
    grid = figure.add_gridspec(
        num_rows,
        num_columns,
        left=0.55 / width,
        right=1 - 0.62 / width,
        top=1 - top / height,
        bottom=bottom / height,
        wspace=0.24,
        hspace=gap / panel_height,
    )
    return figure, grid


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the figure, atomically, as what the file's name ends in: PNG, or SVG with its text kept as text."""
    buffer, kind = io.BytesIO(), path.suffix.removeprefix(".")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "maxent_grpo"}):
        figure.savefig(
            buffer, format=kind, facecolor="white", metadata={"Date": None} if kind == "svg" else None
        )  # without a date equal figures are equal files
    write_atomically(path, lambda file: file.write(buffer.getvalue()))
    return path

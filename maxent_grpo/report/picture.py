"""Pictures of runs: one run as small multiples (report.png), and several runs laid over each other.

Read from the run directories alone: metrics.jsonl for the numbers, config.yaml for the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from maxent_grpo.report.comparison import comparison_figure
from maxent_grpo.report.evaluations import charts_against_k
from maxent_grpo.report.panels import PANELS, Panel, Rows, panel_against_k
from maxent_grpo.report.read import PICTURE_FILE, headline_measures, metric_series, read_identity, read_metrics
from maxent_grpo.report.style import label_steps, new_figure, panel_grid, save_figure

NUM_COLUMNS = 3

Placement = tuple[Panel, int, int, int]
"""Panel, its row, its first column and the column after its last."""


def _place(panels: Sequence[Panel]) -> list[Placement]:
    """Fill the grid row by row; the last panel of a row takes what the next does not fit into."""
    placed: list[Placement] = []
    row = column = 0
    for panel in panels:
        if column + panel.columns > NUM_COLUMNS:
            last, last_row, start, _ = placed[-1]
            placed[-1] = (last, last_row, start, NUM_COLUMNS)
            row, column = row + 1, 0
        placed.append((panel, row, column, column + panel.columns))
        column += panel.columns
        if column == NUM_COLUMNS:
            row, column = row + 1, 0
    last, last_row, start, _ = placed[-1]
    placed[-1] = (last, last_row, start, NUM_COLUMNS)
    return placed


def _title(run_dir: Path, rows: Rows) -> tuple[str, str]:
    identity = read_identity(run_dir)
    seed = "" if identity.seed is None else f", seed {identity.seed}"
    steps = max((row["step"] for row in rows), default=0)
    changes = []
    for name in headline_measures(rows):
        _, values = metric_series(rows, f"eval/{name}")
        changes.append(f"{name} {values[0]:.2f} → {values[-1]:.2f}" if len(values) > 1 else f"{name} {values[0]:.2f}")
    folder = f"run {identity.folder}"
    return f"{identity.label}{seed}", "   ·   ".join([f"{steps} step{'' if steps == 1 else 's'}", *changes, folder])


def picture_figure(run_dir: Path) -> Figure:
    """The figure of one run; each axes' label is the key of its panel. A run without a line gives a figure that says so.

    Raises:
        DataError: metrics.jsonl is missing or damaged.
    """
    rows = read_metrics(run_dir)
    panels = [panel for panel in PANELS if panel.is_present(rows)]
    against_k = [chart for chart in charts_against_k(run_dir, rows)[0][:1] if len(chart.lines[0].x) > 2]
    panels[1:1] = [panel_against_k(chart) for chart in against_k]
    if not panels:
        return new_figure(8, 1.6, _title(run_dir, rows)[0], "nothing to draw: no metric of any panel was recorded")
    placed = _place(panels)
    num_rows = placed[-1][1] + 1
    figure, grid = panel_grid(num_rows, NUM_COLUMNS, *_title(run_dir, rows))
    for panel, row, first, end in placed:
        axes = figure.add_subplot(grid[row, first:end], label=panel.key)
        panel.draw(axes, rows)
        if row == num_rows - 1 and panel.key != "pass_by_k":
            label_steps(axes)
    return figure


def draw_picture(run_dir: Path, folder: Path | None = None) -> Path:
    """Draw ``report.png`` of a run into ``folder``, by default its own, replacing an old one; returns its path."""
    return save_figure(picture_figure(run_dir), (folder or run_dir) / PICTURE_FILE)


def draw_comparison(runs: Sequence[Path], path: Path, labels: Sequence[str] | None = None) -> Path:
    """Draw several runs over each other into the PNG ``path``; see ``comparison_figure``."""
    return save_figure(comparison_figure(runs, labels), path)

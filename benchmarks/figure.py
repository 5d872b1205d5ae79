"""The growth of a step, drawn."""

from __future__ import annotations

from pathlib import Path

from benchmarks.catalogue import OURS, SYMBOLS
from benchmarks.results import Results, growth

COLOURS = {OURS: "#1b6ca8", "trl": "#c0504d"}
LABELS = {OURS: "maxent_grpo", "trl": "TRL"}


def draw_growth(found: Results, path: Path) -> bool:
    """Seconds of a step against group size, completion length and prompt length; False when there is nothing to draw."""
    table = growth(found)
    if not table:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(table), 2.8), layout="constrained")
    axes = figure.subplots(1, len(table), squeeze=False, sharey=True)[0]
    for place, (axis, rows) in zip(axes, table.items(), strict=True):
        for side, colour in COLOURS.items():
            points = [(size, sides[side]) for size, sides in rows if side in sides]
            if points:
                place.plot(*zip(*points, strict=True), marker="o", markersize=4, color=colour, label=LABELS[side])
        place.set_xscale("log", base=2)
        place.set_yscale("log")
        place.set_xticks([size for size, _ in rows], [str(size) for size, _ in rows])
        place.set_xlabel(f"{SYMBOLS[axis].upper()} [{'completions' if axis == 'group' else 'tokens'}]")
        place.grid(alpha=0.3)
    axes[0].set_ylabel("CPU seconds of a step")
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return True

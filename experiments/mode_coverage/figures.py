"""The study's figures, from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.mode_coverage.effects import BASELINE, HARM, PRIMARY, Record, Results, effects
from experiments.mode_coverage.table import Part

KS = (1, 2, 4, 8, 16)
COLOURS: dict[str, str] = dict(zip(
    ("dr_grpo", "dr_grpo_again", "dr_grpo_hot", "maxent", "maxent_pilot", "soft", "uniqueness"),
    ("#b23a48", "#d99aa2", "#e08e45", "#2a6f97", "#7fb3d3", "#4f772d", "#8d6a9f"), strict=True,
))  # fmt: skip


def draw_figures(results: Results, folder: Path) -> list[Path]:
    """Every figure whose runs are there."""
    folder.mkdir(parents=True, exist_ok=True)
    parts, drawn = results.study.parts, list[Path]()
    for name in ("confirmatory", "countdown"):
        part = parts[name]
        if any(results.runs(name, arm.name) for arm in part.arms):
            drawn.append(_save(curves(results, part), folder / f"{name}_curves.png"))
            drawn.append(_save(pass_at_k(results, part), folder / f"{name}_passk.png"))
            if effects(results, part, measures=[PRIMARY]):
                drawn.append(_save(forest(results, part), folder / f"{name}_effects.png"))
    if any(results.runs("doses", arm.name) for arm in parts["doses"].arms):
        drawn.append(_save(doses(results, parts["doses"]), folder / "doses.png"))
    return drawn


SPENT = (("tokens", "sampled tokens [million]", 1e6), ("cpu_seconds", "CPU time [s]", 1.0))
"""What a curve is drawn against: field of the record, words, divisor."""


def curves(results: Results, part: Part) -> Any:
    """The primary outcome and pass@1 against sampled tokens and CPU time; lines are means, shades reach from the lowest to the
    highest pair."""
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 6.6), sharey="col")
    for row, (spent, words, unit) in zip(axes, SPENT, strict=True):
        for axis, measure in zip(row, (PRIMARY, HARM), strict=True):
            for arm in part.arms:
                runs = list(results.runs(part.name, arm.name).values())
                if runs:
                    length = min(len(record["curve"]) for record in runs)
                    values, cost = (_over_runs(runs, name, length) for name in (measure, spent))
                    colour, along = COLOURS.get(arm.name), cost.mean(axis=0) / unit
                    axis.plot(along, values.mean(axis=0), label=arm.name, color=colour, lw=1.6)
                    axis.fill_between(along, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.12, lw=0)
            axis.set(xlabel=words, title=measure)
    _name_arms(axes[0][1])
    return figure


def _over_runs(runs: Sequence[Record], name: str, length: int) -> Any:
    return np.array([[point[name] for point in record["curve"][:length]] for record in runs])


def forest(results: Results, part: Part) -> Any:
    """Differences from the baseline with their intervals; the A/A interval is a row like the others."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 0.5 * len(part.arms) + 1.3), sharey=True)
    for axis, measure in zip(axes, (PRIMARY, HARM), strict=True):
        found = effects(results, part, measures=[measure])
        for row, each in enumerate(reversed(found)):
            colour = COLOURS.get(each.arm)
            axis.plot(each.differences, [row + 0.18] * len(each.differences), "|", color=colour, ms=5, alpha=0.7)
            axis.plot([each.interval.low, each.interval.high], [row, row], color=colour, lw=2)
            axis.plot([each.mean], [row], "o", color=colour, ms=5)
        axis.axvline(0, color="0.4", lw=0.8)
        if measure == HARM:
            axis.axvline(-0.03, color="0.4", lw=0.8, ls=":")
        axis.set(title=f"{measure}: arm minus {BASELINE}")
        axis.set_yticks(range(len(found)), [each.arm for each in reversed(found)])
    return figure


def pass_at_k(results: Results, part: Part) -> Any:
    """pass@k and coverage@k against k at the end of training, and of the start."""
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6))
    for axis, measure in zip(axes, ("pass", "coverage"), strict=True):
        for arm in part.arms:
            runs = list(results.runs(part.name, arm.name).values())
            if runs:
                axis.plot(
                    KS, _over_k(runs, measure, -1), "o-", label=arm.name, color=COLOURS.get(arm.name), ms=3, lw=1.4
                )
        start = next((list(runs.values()) for arm in part.arms if (runs := results.runs(part.name, arm.name))), [])
        axis.plot(KS, _over_k(start, measure, 0), "o--", label="start", color="0.5", ms=3, lw=1.2)
        axis.set_xscale("log", base=2)
        axis.set_xticks(KS, list(map(str, KS)))
        axis.set(xlabel="k", title=f"{measure}@k")
    _name_arms(axes[1])
    return figure


def doses(results: Results, part: Part) -> Any:
    """Primary outcome and pass@1 against lambda, one dot a pair."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.2))
    for axis, measure in zip(axes, (PRIMARY, HARM), strict=True):
        for place, arm in enumerate(part.arms):
            values = [record["curve"][-1][measure] for record in results.runs(part.name, arm.name).values()]
            axis.plot([place] * len(values), values, "o", color="#2a6f97", ms=4, alpha=0.7)
            if values:
                axis.plot([place - 0.2, place + 0.2], [np.mean(values)] * 2, color="#2a6f97", lw=2)
        axis.set_xticks(range(len(part.arms)), [arm.name.removeprefix("lambda_") for arm in part.arms])
        axis.set(xlabel="λ", title=measure)
    return figure


def _name_arms(axis: Any) -> None:
    """The legend beside the panels, where it lies on no line."""
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))


def _over_k(runs: Sequence[Record], measure: str, place: int) -> list[float]:
    return [float(np.mean([record["curve"][place][f"{measure}@{k}"] for record in runs])) for k in KS]


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout(w_pad=2.5)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
    return path

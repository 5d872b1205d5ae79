"""The study's figures, from the records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from experiments.mode_coverage.effects import BASELINE, HARM, PRIMARY, Record, Results, effects
from experiments.mode_coverage.table import Part

KS = (1, 2, 4, 8, 16)
LOOKS: dict[str, tuple[str, str]] = {
    "dr_grpo": ("#b23a48", "-"),
    "dr_grpo_again": ("#d99aa2", "--"),
    "dr_grpo_hot": ("#e08e45", ":"),
    "maxent": ("#2a6f97", "-"),
    "maxent_pilot": ("#7fb3d3", "-."),
    "soft": ("#4f772d", "--"),
    "uniqueness": ("#8d6a9f", "-."),
}
"""Colour and stroke of an arm: neither is needed to tell them by the other."""
SHADED = ("dr_grpo", "maxent", "uniqueness")
"""Arms whose standard deviation is drawn: more shades hide each other."""
OTHERS = ("pass@8", "greedy", "H_valid", "kl_to_optimum")
NAMES = {"kl_to_optimum": "KL(π*‖π) [nats]", "H_valid": "H_valid: evenness among right answers"}
START = {"color": "0.35", "lw": 1.0, "ls": (0, (1, 2))}


def draw_figures(results: Results, folder: Path) -> list[Path]:
    """Every figure whose runs are there."""
    folder.mkdir(parents=True, exist_ok=True)
    parts, drawn = results.study.parts, list[Path]()
    for name in ("confirmatory", "countdown", "chat"):
        part = parts[name]
        ran = {arm.name: list(runs.values()) for arm in part.arms if (runs := results.runs(name, arm.name))}
        if ran:
            drawn.append(_save(curves(ran), folder / f"{name}_curves.png"))
            drawn.append(_save(pass_at_k(ran), folder / f"{name}_passk.png"))
            if all(measure in next(iter(ran.values()))[0]["curve"][0] for measure in OTHERS):
                drawn.append(_save(others(ran), folder / f"{name}_others.png"))
            # a single difference is read as well in the table
            if len(part.arms) > 2 and effects(results, part, measures=[PRIMARY]):
                drawn.append(_save(forest(results, part), folder / f"{name}_effects.png"))
    if any(results.runs("doses", arm.name) for arm in parts["doses"].arms):
        drawn.append(_save(doses(results, parts["doses"]), folder / "doses.png"))
    return drawn


SPENT = (("tokens", "sampled tokens [million]", 1e6), ("cpu_seconds", "CPU time [s]", 1.0))
"""What a curve is drawn against: field of the record, words, divisor."""


def curves(ran: Mapping[str, Sequence[Record]]) -> Any:
    """The primary outcome and pass@1 against sampled tokens and CPU time."""
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 6.6), sharey="col")
    for row, (spent, words, unit) in zip(axes, SPENT, strict=True):
        for axis, measure in zip(row, (PRIMARY, HARM), strict=True):
            _draw_means(axis, ran, measure, spent, unit)
            axis.set(xlabel=words, title=measure)
    _name_arms(axes[0][1])
    return figure


def others(ran: Mapping[str, Sequence[Record]]) -> Any:
    """Secondary outcomes against the step."""
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 6.6))
    for axis, measure in zip(axes.flat, OTHERS, strict=True):
        _draw_means(axis, ran, measure, "step", 1.0)
        axis.set(xlabel="step", title=NAMES.get(measure, measure))
    _name_arms(axes[0][1])
    return figure


def _draw_means(axis: Any, ran: Mapping[str, Sequence[Record]], measure: str, spent: str, unit: float) -> None:
    """Means over pairs; shades of one standard deviation to either side, and the level of the start."""
    for arm, runs in ran.items():
        length = min(len(record["curve"]) for record in runs)
        values, cost = (_over_runs(runs, name, length) for name in (measure, spent))
        (colour, stroke), along, mean = LOOKS[arm], cost.mean(axis=0) / unit, values.mean(axis=0)
        axis.plot(along, mean, stroke, label=arm, color=colour, lw=1.6)
        if arm in SHADED and len(runs) > 1:
            sd = values.std(axis=0, ddof=1)
            axis.fill_between(along, mean - sd, mean + sd, color=colour, alpha=0.13, lw=0)
    first = next(iter(ran.values()))
    axis.axhline(_over_runs(first, measure, 1).mean(), label="start", **START)


def _over_runs(runs: Sequence[Record], name: str, length: int) -> Any:
    return np.array([[point[name] for point in record["curve"][:length]] for record in runs])


def forest(results: Results, part: Part) -> Any:
    """Differences from the baseline with their intervals; the A/A interval is a row like the others."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 0.5 * len(part.arms) + 1.6), sharey=True)
    for axis, measure in zip(axes, (PRIMARY, HARM), strict=True):
        found = effects(results, part, measures=[measure])
        for row, each in enumerate(reversed(found)):
            colour = LOOKS[each.arm][0]
            axis.plot(each.differences, [row + 0.18] * len(each.differences), "|", color=colour, ms=5, alpha=0.7)
            axis.plot([each.interval.low, each.interval.high], [row, row], color=colour, lw=2)
            axis.plot([each.mean], [row], "o", color=colour, ms=5)
        axis.axvline(0, color="0.4", lw=0.8)
        if measure == HARM:
            axis.axvline(-0.03, color="0.4", lw=0.8, ls=":")
        axis.set(title=f"{measure}: arm minus {BASELINE}", xlabel="mean and 95% interval; one tick a pair")
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.set_yticks(range(len(found)), [each.arm for each in reversed(found)])
        axis.set_ylim(-0.5, len(found) - 0.3)
    return figure


def pass_at_k(ran: Mapping[str, Sequence[Record]]) -> Any:
    """pass@k and coverage@k against k at the end of training, and of the start."""
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6))
    for axis, measure in zip(axes, ("pass", "coverage"), strict=True):
        for arm, runs in ran.items():
            colour, stroke = LOOKS[arm]
            axis.plot(KS, _over_k(runs, measure, -1), f"o{stroke}", label=arm, color=colour, ms=3, lw=1.4)
        axis.plot(KS, _over_k(next(iter(ran.values())), measure, 0), marker="o", ms=3, label="start", **START)
        axis.set_xscale("log", base=2)
        axis.set_xticks(KS, list(map(str, KS)))
        axis.set(xlabel="k", title=f"{measure}@k")
    _name_arms(axes[1])
    return figure


def doses(results: Results, part: Part) -> Any:
    """Primary outcome and pass@1 against lambda, one thin line a pair and a bar for the mean."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.2))
    by_arm = [results.runs(part.name, arm.name) for arm in part.arms]
    for axis, measure in zip(axes, (PRIMARY, HARM), strict=True):
        for pair in set.intersection(*map(set, by_arm)):
            along = [runs[pair]["curve"][-1][measure] for runs in by_arm]
            axis.plot(range(len(along)), along, "-", color="#2a6f97", lw=0.8, alpha=0.45)
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

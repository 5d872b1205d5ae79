"""From rows' figures to what an evaluation reports: means with intervals, curves against k, paired comparisons. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from maxent_grpo.stats.compare import Interval, bootstrap_means, mcnemar, paired_differences

if TYPE_CHECKING:
    from maxent_grpo.training.evaluation_job import Answers

Rows = Mapping[str, Mapping[str, float]]
"""Row id to the row's figures by name."""

GREEDY = "greedy"
MEASURES = ("pass", "maj", "distinct", "coverage")
"""What is estimated at every k."""
LAST = ("mean_length", "clipped_ratio", "mean_reward")


def figure_names(rows: Rows, ks: Sequence[int]) -> list[str]:
    """The figures to report, in order: greedy, mean@n, then each measure at every k asked for, then the rest."""
    found = {name for figures in rows.values() for name in figures}
    means = sorted(name for name in found if name.startswith("mean@"))
    names = [GREEDY, *means, *(f"{measure}@{k}" for measure in MEASURES for k in ks), *LAST]
    return [name for name in names if name in found]


def model_result(answers: Answers, ks: Sequence[int], all_ks: Sequence[int]) -> dict[str, Any]:
    """One model's entry of evaluation.json."""
    subject = answers.subject
    weights = subject.final_model or subject.checkpoint
    names = figure_names(answers.rows, ks)
    curves = [f"{measure}@{k}" for measure in MEASURES for k in all_ks]
    intervals = _intervals(answers.rows, [*names, *curves])
    return {
        "label": subject.label,
        "source": subject.source,
        "checkpoint": None if weights is None else str(weights),
        "step": subject.step,
        "rows": len(answers.rows),
        "dropped_rows": answers.dropped,
        "abstained": answers.abstained,
        "figures": {name: _plain(intervals[name]) for name in names},
        "others": answers.others,
        "curves": {
            measure: {"k": list(all_ks), **_columns([intervals[f"{measure}@{k}"] for k in all_ks])}
            for measure in MEASURES
            if all(f"{measure}@{k}" in intervals for k in all_ks)
        },
        "notes": answers.notes,
    }


def comparison_result(answers: Answers, other: Answers, ks: Sequence[int]) -> dict[str, Any]:
    """Two models on the problems that both answered: McNemar's exact test for greedy, a paired bootstrap for the rest."""
    common = [row_id for row_id in answers.rows if row_id in other.rows]
    both = {row_id: answers.rows[row_id].keys() & other.rows[row_id].keys() for row_id in common}
    pairs = {row_id: {name: answers.rows[row_id][name] for name in names} for row_id, names in both.items()}
    names = figure_names(pairs, ks)
    figures: dict[str, Any] = {}
    for shared, members in _groups(pairs, names, common):
        sides = [_matrix(side.rows, shared, members) for side in (answers, other)]
        for name, found in zip(members, paired_differences(*sides), strict=True):
            figures[name] = {
                "difference": found.mean, "low": _number(found.low), "high": _number(found.high),
                "p": _number(found.p), "test": "paired bootstrap",
            }  # fmt: skip
    if GREEDY in figures:
        left, right = ([side.rows[row_id][GREEDY] for row_id in common] for side in (answers, other))
        only_model = sum(a > b for a, b in zip(left, right, strict=True))
        only_other = sum(a < b for a, b in zip(left, right, strict=True))
        figures[GREEDY] |= {
            "p": mcnemar(only_model, only_other), "test": "McNemar, exact",
            "only_model_right": only_model, "only_against_right": only_other,
        }  # fmt: skip
    return {
        "model": answers.subject.label,
        "against": other.subject.label,
        "rows": len(common),
        "left_out": len(answers.rows) + len(other.rows) - 2 * len(common),
        "figures": {name: figures[name] for name in names if name in figures},
    }


def _intervals(rows: Rows, names: Sequence[str]) -> dict[str, Interval]:
    """The interval of every figure that a row has, over the rows that have it."""
    found: dict[str, Interval] = {}
    for row_ids, members in _groups(rows, list(dict.fromkeys(names)), list(rows)):
        found |= dict(zip(members, bootstrap_means(_matrix(rows, row_ids, members)), strict=True))
    return found


def _groups(rows: Rows, names: Sequence[str], row_ids: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """Figures by the rows that have them: coverage, say, needs rows whose right answers are known."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(tuple(row_id for row_id in row_ids if name in rows[row_id]), []).append(name)
    return [(list(shared), members) for shared, members in groups.items() if shared]


def _matrix(rows: Rows, row_ids: Sequence[str], names: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([[rows[row_id][name] for name in names] for row_id in row_ids], dtype=np.float64)


def _plain(interval: Interval) -> dict[str, float | None]:
    return {"mean": interval.mean, "low": _number(interval.low), "high": _number(interval.high)}


def _columns(intervals: Sequence[Interval]) -> dict[str, list[float | None]]:
    plain = [_plain(interval) for interval in intervals]
    return {name: [entry[name] for entry in plain] for name in ("mean", "low", "high")}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value

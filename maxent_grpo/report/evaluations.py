"""Success against the number of samples: the first held-out evaluation beside the last.

From evaluations.jsonl, which holds every problem's counts, for each k that the samples allow; without it, from the figures in
metrics.jsonl for the few k they were computed for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from maxent_grpo.errors import DataError
from maxent_grpo.report.read import EVALUATIONS_FILE, evaluated_ks, iterate_jsonl, metric_series
from maxent_grpo.report.svg import NUM_COLORS, Chart, Line
from maxent_grpo.stats.passk import coverage_at_k, pass_at_k

Rows = Sequence[Mapping[str, Any]]

MAX_KS = 48
"""Most k at which a curve is computed."""


def charts_against_k(run_dir: Path, rows: Rows) -> tuple[list[Chart], str]:
    """pass@k and coverage@k against k, start and end, those of which two k are known; and what limits them, in words."""
    path = run_dir / EVALUATIONS_FILE
    if path.is_file():
        return _from_counts(path), ""
    charts = [chart for chart in (_from_metrics(rows, "pass"), _from_metrics(rows, "coverage")) if chart is not None]
    ks = ", ".join(map(str, evaluated_ks(rows, "pass")))
    note = f"Against k: only k = {ks}, from metrics.jsonl, because the run has no {EVALUATIONS_FILE} with each problem's counts."
    return charts, note if charts else ""


def _chart(measure: str, ends: Sequence[tuple[int, Sequence[int], Sequence[float]]]) -> Chart:
    unit = "share of problems" if measure == "pass" else "share of right answers"
    lines = [
        Line(
            f"step {step}",
            np.asarray(ks, dtype=np.float64),
            np.asarray(values, dtype=np.float64),
            color=0 if index == len(ends) - 1 else NUM_COLORS - 1,
            is_dashed=index == 0 and len(ends) > 1,
            has_dots=len(ks) <= 8,
        )
        for index, (step, ks, values) in enumerate(ends)
    ]
    title = f"{measure}@k against k"
    return Chart(f"{measure}_by_k", title, unit, lines, top=1.0, x_name="k", is_log_x=True)


def _from_metrics(rows: Rows, measure: str) -> Chart | None:
    ks = evaluated_ks(rows, measure)
    if len(ks) < 2:
        return None
    series = {k: dict(zip(*metric_series(rows, f"eval/{measure}@{k}"), strict=True)) for k in ks}
    steps = sorted(set.intersection(*(set(values) for values in series.values())))
    if not steps:
        return None
    ends = [(step, ks, [series[k][step] for k in ks]) for step in dict.fromkeys((steps[0], steps[-1]))]
    return _chart(measure, ends)


def _from_counts(path: Path) -> list[Chart]:
    """The curves of the first and the last evaluation in the file."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    first: int | None = None
    for _, row in iterate_jsonl(path):
        if not isinstance(row.get("step"), int):
            raise DataError(f"{path} has a line without a whole-numbered step: it is not a record of evaluations")
        step = row["step"]
        first = step if first is None else first
        if step not in by_step:
            by_step = {kept: by_step[kept] for kept in by_step if kept == first} | {step: []}
        by_step[step].append(row)
    if not by_step:
        return []
    try:
        return _curves(by_step)
    except (ValueError, KeyError) as error:
        raise DataError(
            f"{path} holds counts that no evaluation gives ({error}): remove the file to do without it"
        ) from error


def _curves(by_step: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[Chart]:
    """pass@k and, where the right answers are known, coverage@k of each step.

    Raises:
        ValueError, KeyError: the counts contradict each other, or are missing.
    """
    charts = [_chart("pass", [(step, *pass_curve(found)) for step, found in by_step.items()])]
    known = {step: [row for row in found if row.get("num_modes")] for step, found in by_step.items()}
    if all(known.values()):
        charts.append(_chart("coverage", [(step, *coverage_curve(found)) for step, found in known.items()]))
    return [chart for chart in charts if len(chart.lines[0].x) > 1]


def _ks(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Numbers of samples from 1 to what every problem has, evenly spread on a logarithmic axis."""
    most = min(int(row["num_samples"]) for row in rows)
    return sorted({round(k) for k in np.geomspace(1, most, MAX_KS)})


def pass_curve(rows: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    """Each k, and the mean pass@k of the problems' records."""
    ks = _ks(rows)
    return ks, [float(np.mean([pass_at_k(row["num_samples"], row["num_right"], k) for row in rows])) for k in ks]


def coverage_curve(rows: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    """Each k, and the mean coverage@k of the problems' records, whose numbers of right answers are known."""
    ks = _ks(rows)
    counts = [(list(row["mode_counts"].values()), row["num_samples"], row["num_modes"]) for row in rows]
    return ks, [float(np.mean([coverage_at_k(modes, n, k, total) for modes, n, total in counts])) for k in ks]

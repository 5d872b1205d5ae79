"""Held-out figures of arms after training: for each seed and problem, with their statistics, and against the baseline.

From evaluations.jsonl, which holds every problem's counts; where a run has none, from the means in metrics.jsonl, and then
problems are not resampled.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxent_grpo.errors import DataError
from maxent_grpo.report.arms.group import Arm, Comparison, read_comparisons
from maxent_grpo.report.read import EVALUATIONS_FILE, headline_measures, iterate_jsonl, metric_series
from maxent_grpo.report.record import RunRecord
from maxent_grpo.stats.compare import Interval
from maxent_grpo.stats.passk import coverage_at_k, pass_at_k
from maxent_grpo.stats.replication import probability_of_improvement, stratified_iqm, two_level_means
from maxent_grpo.stats.seed_tests import Equivalence, equivalence, holm, sign_flip, sign_test

GREEDY = "greedy"
EQUIVALENCE_MEASURE = "pass@1"
"""The figure of which "no worse" and "equal" are tested."""

Problems = Mapping[str, Mapping[str, Any]]
"""Records of one evaluation by row."""
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ArmFigure:
    """One measure of one arm at the compared step."""

    per_seed: Values
    """Mean over problems of each seed."""
    mean: Interval
    """Over seeds and problems, by the two-level bootstrap."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An arm minus the baseline in one measure, over the seeds that both have."""

    arm: Arm
    measure: str
    seeds: Sequence[int]
    differences: Values
    """One a seed."""
    mean: Interval
    p: float
    """Sign-flip test; NaN for fewer than two seeds."""
    is_exact: bool
    p_sign: float
    equivalence: Equivalence | None
    p_holm: float = math.nan
    """``p`` adjusted within its family."""
    num_tests: int = 1
    """Tests in that family."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that is said of one comparison's held-out figures."""

    comparison: Comparison
    step: int | None
    """The last step that every run evaluated; None where there is none."""
    measures: Sequence[str]
    num_problems: int | None
    """Problems that every run was asked; None where only means are known."""
    figures: Mapping[str, Mapping[str, ArmFigure]]
    """By arm's name and measure."""
    effects: Sequence[Effect]
    evaluated: Mapping[Path, Mapping[int, Problems]]
    """By run directory, the records of the evaluation before training and of the compared one."""

    def problems(self, run: RunRecord, step: int | None) -> Problems:
        """The records of a run's evaluation at one of those steps; empty where it has none."""
        return {} if step is None else self.evaluated[run.run_dir].get(step, {})


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One arm in one measure over all seeds and tasks."""

    arm: Arm
    measure: str
    iqm: Interval
    improvement: Interval | None
    """P(better than the baseline); None for the baseline."""


def family(measure: str) -> str:
    """The outcome family within which p-values are adjusted: success, or diversity of right answers."""
    return "success" if measure == GREEDY or measure.startswith("pass@") else "diversity"


def read_findings(runs: Sequence[Path], baseline: str | None = None, left_out: Sequence[str] = ()) -> list[Findings]:
    """Group runs into arms and tasks, and compare the arms of each task.

    Args:
        runs: run directories with a metrics.jsonl.
        baseline: name of the arm that others are compared with, or a part of it; by default the first run's.
        left_out: sentences about folders that are no runs yet.

    Raises:
        DataError: no run has taken a step, a file is damaged, or there is no such baseline.
    """
    comparisons = read_comparisons(runs, baseline)
    comparisons[0].notes[:0] = left_out
    return [find(each) for each in comparisons]


def find(comparison: Comparison) -> Findings:
    """Figures, intervals and tests at the last step that every run evaluated.

    Raises:
        DataError: a record of evaluations is damaged.
    """
    step, measures = _last_evaluation(comparison)
    evaluated = {run.run_dir: _read_evaluations(run.run_dir, {0, step}) for _, run in comparison.runs}
    if step is None:
        return Findings(comparison, None, (), None, {}, (), evaluated)
    values, num_problems = _values(comparison, step, measures, evaluated)
    measures = [name for name in measures if name in values]
    figures = {arm.name: _arm_figures({name: values[name][arm.name] for name in measures}) for arm in comparison.arms}
    effects = [effect for arm in comparison.arms[1:] for effect in _effects(comparison, arm, values, measures)]
    return Findings(comparison, step, measures, num_problems, figures, _adjusted(effects), evaluated)


def _read_evaluations(run_dir: Path, steps: Collection[int | None]) -> dict[int, dict[str, Mapping[str, Any]]]:
    """The records of the evaluations at these steps by row, as far as the run has them."""
    path = run_dir / EVALUATIONS_FILE
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    for _, row in iterate_jsonl(path) if path.is_file() else ():
        if row.get("step") in steps:
            if not isinstance(row.get("num_samples"), int) or not isinstance(row.get("num_right"), int):
                raise DataError(f"{path} has a line without a problem's counts: it is not a record of evaluations")
            found.setdefault(row["step"], {})[str(row.get("row_id"))] = row
    return found


def aggregates(findings: Sequence[Findings]) -> list[Aggregate]:
    """IQM and probability of improvement of the arms that were run on every task, in every measure that all have."""
    told = [each for each in findings if each.measures]
    if not told:
        return []
    measures = [name for name in told[0].measures if all(name in each.measures for each in told)]
    arms = [arm for arm in told[0].comparison.arms if all(arm.name in each.figures for each in told)]
    base = told[0].comparison.baseline.name
    found = []
    for measure in measures:
        scores = {arm.name: [each.figures[arm.name][measure].per_seed.tolist() for each in told] for arm in arms}
        for arm in arms:
            other = None if arm.name == base or base not in scores else scores[base]
            better = None if other is None else probability_of_improvement(scores[arm.name], other)
            found.append(Aggregate(arm, measure, stratified_iqm(scores[arm.name]), better))
    return found


def _last_evaluation(comparison: Comparison) -> tuple[int | None, list[str]]:
    """The last step at which every run recorded the measures that all of them have, and those measures."""
    runs = [run for _, run in comparison.runs]
    names = headline_measures([row for run in runs for row in run.rows])
    steps = {name: [set(metric_series(run.rows, f"eval/{name}")[0]) for run in runs] for name in [*names, GREEDY]}
    measures = [name for name, of_runs in steps.items() if all(of_runs)]
    common = set.intersection(*(each for name in measures for each in steps[name])) if measures else set()
    return max((step for step in common if step <= comparison.last_step), default=None), measures


def _values(
    comparison: Comparison, step: int, measures: Sequence[str], evaluated: Mapping[Path, Mapping[int, Problems]]
) -> tuple[dict[str, dict[str, Values]], int | None]:
    """For each measure and arm [seeds, problems], of problems that every run was asked; and how many those are."""
    records = {run.run_dir: evaluated[run.run_dir].get(step, {}) for _, run in comparison.runs}
    shared = set.intersection(*(set(rows) for rows in records.values()))
    found: dict[str, dict[str, Values]] = {}
    for name in measures:
        scored = {key: {row: _figure(rows[row], name) for row in shared} for key, rows in records.items()}
        rows = sorted(row for row in shared if all(each[row] is not None for each in scored.values()))
        if rows:
            found[name] = {
                arm.name: np.array([[scored[run.run_dir][row] for row in rows] for run in arm.runs], dtype=np.float64)
                for arm in comparison.arms
            }
    if found:
        return found, len(shared)
    return {name: _recorded_means(comparison, step, name) for name in measures}, None


def _recorded_means(comparison: Comparison, step: int, measure: str) -> dict[str, Values]:
    series = {
        arm.name: [dict(zip(*metric_series(run.rows, f"eval/{measure}"), strict=True))[step] for run in arm.runs]
        for arm in comparison.arms
    }
    return {name: np.asarray(values, dtype=np.float64)[:, None] for name, values in series.items()}


def _figure(row: Mapping[str, Any], measure: str) -> float | None:
    """One problem's figure from its counts; None where they do not tell."""
    if measure == GREEDY:
        right = row.get("greedy_right")
        return None if right is None else float(right)
    kind, _, k = measure.partition("@")
    samples, modes = int(row["num_samples"]), row.get("num_modes")
    if int(k) > samples:
        return None
    if kind == "pass":
        return pass_at_k(samples, int(row["num_right"]), int(k))
    return coverage_at_k(list(row["mode_counts"].values()), samples, int(k), modes) if modes else None


def _intervals(values: Mapping[str, Values]) -> dict[str, Interval]:
    """Two-level intervals; measures over equally many problems are resampled together."""
    found: dict[str, Interval] = {}
    for shape in {each.shape for each in values.values()}:
        names = [name for name, each in values.items() if each.shape == shape]
        intervals = two_level_means(np.stack([values[name] for name in names], axis=-1))
        found |= dict(zip(names, intervals, strict=True))
    return found


def _arm_figures(values: Mapping[str, Values]) -> dict[str, ArmFigure]:
    intervals = _intervals(values)
    return {name: ArmFigure(each.mean(axis=1), intervals[name]) for name, each in values.items()}


def _effects(
    comparison: Comparison, arm: Arm, values: Mapping[str, Mapping[str, Values]], measures: Sequence[str]
) -> list[Effect]:
    base = comparison.baseline
    seeds = [seed for seed in arm.seeds if seed is not None and seed in base.seeds]
    if not seeds:
        return []
    mine, theirs = ([each.seeds.index(seed) for seed in seeds] for each in (arm, base))
    differences = {name: values[name][arm.name][mine] - values[name][base.name][theirs] for name in measures}
    intervals = _intervals(differences)
    found = []
    for name, each in differences.items():
        of_seeds = each.mean(axis=1)
        flipped = sign_flip(of_seeds.tolist()) if len(seeds) > 1 else None
        found.append(
            Effect(
                arm,
                name,
                seeds,
                of_seeds,
                intervals[name],
                math.nan if flipped is None else flipped.p,
                flipped is None or flipped.is_exact,
                math.nan if flipped is None else sign_test(of_seeds.tolist()),
                equivalence(of_seeds.tolist()) if name == EQUIVALENCE_MEASURE else None,
            )
        )
    return found


def _adjusted(effects: Sequence[Effect]) -> list[Effect]:
    """Holm's adjustment over all arms and measures of a family."""
    found: dict[int, Effect] = {}
    for name in {family(effect.measure) for effect in effects}:
        members = [effect for effect in effects if family(effect.measure) == name and not math.isnan(effect.p)]
        adjusted = holm([each.p for each in members])
        found |= {
            id(each): replace(each, p_holm=p, num_tests=len(members)) for each, p in zip(members, adjusted, strict=True)
        }
    return [found.get(id(effect), effect) for effect in effects]

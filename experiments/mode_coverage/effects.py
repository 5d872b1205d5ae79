"""From the records in results/ to numbers: where each run stood, and what an arm did against the baseline of its pair.

The unit is the pair: an arm's and the baseline's run that began from the same weights. Runs are compared after equally many
sampled completions, so that an arm that draws prompts again, or uses a rollout twice, is judged at the same cost of sampling.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.mode_coverage.table import Part, Study
from maxent_grpo.stats.compare import Interval
from maxent_grpo.stats.replication import probability_of_improvement, stratified_iqm, two_level_means
from maxent_grpo.stats.seed_tests import Equivalence, equivalence, holm, sign_flip

BASELINE = "dr_grpo"
AGAIN = "dr_grpo_again"
TERM = "maxent"
"""The arm that the study is about."""
PRIMARY = "coverage@8"
HARM = "pass@1"
MEASURES = ("pass@1", "pass@8", "coverage@8", "distinct@8", "H_valid", "greedy", "kl_to_optimum")
TESTED = ("coverage@8", "pass@8", "pass@1")
"""Outcomes with p-values, each a family of its own for Holm's adjustment over arms."""
OF_THE_TARGET = ("kl_to_optimum",)
"""Figures that depend on the temperatures of an arm, also before training."""
SAME_START = 0.005
"""Largest difference of outcomes between the starts of a pair in two parts: another machine's arithmetic gives other last digits."""
LEAST_FOR_TESTS = 6
"""Fewest pairs whose signs can give a p below .05."""
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Effect:
    """An arm against the baseline in one outcome, over the pairs that both have."""

    arm: str
    measure: str
    differences: list[float]
    interval: Interval
    """Mean difference, and the 95% interval of the bootstrap over pairs and problems."""
    p: float | None
    """Sign-flip over pairs; None for too few."""
    p_holm: float | None
    equivalence: Equivalence | None
    """Of pass@1: the one-sided tests at 3 points."""

    @property
    def mean(self) -> float:
        """Mean difference over pairs."""
        return self.interval.mean


@dataclass(frozen=True)
class Results:
    """All records that there are."""

    study: Study
    records: dict[tuple[str, str, int], Record]
    """By part, arm and pair."""

    def runs(self, part: str, arm: str) -> dict[int, Record]:
        """The finished runs of an arm, by pair."""
        return {pair: each for (of, name, pair), each in sorted(self.records.items()) if (of, name) == (part, arm)}

    def yardstick(self, part: Part, arm: str = BASELINE) -> dict[int, Record]:
        """The runs of an arm that a part is compared with: its own, or those of the confirmatory part of the same task."""
        for other in (part, *self.study.parts.values()):
            if other.task == part.task and (other is part or other.kind == "confirmatory"):
                found = self.runs(other.name, arm)
                if found:
                    return found
        return {}

    def finished(self, part: Part) -> int:
        """How many runs of a part are there."""
        return sum((part.name, arm.name, pair) in self.records for arm in part.arms for pair in part.pairs)

    def is_complete(self, part: Part) -> bool:
        """Whether every run of a part is there."""
        return self.finished(part) == part.runs


def read_results(study: Study, folder: Path) -> Results:
    """Every record below ``folder``.

    Raises:
        ValueError: runs of one arm in one part have different settings, or runs of one pair did not begin alike.
    """
    records: dict[tuple[str, str, int], Record] = {}
    settings: dict[tuple[str, str], str] = {}
    starts: dict[tuple[str, int], Record] = {}  # of a part, and of a task
    for path in sorted(folder.glob("*/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        part, arm, pair = record["part"], record["arm"], record["pair"]
        if settings.setdefault((part, arm), record["settings"]) != record["settings"]:
            raise ValueError(
                f"{path}: other settings than the other runs of {part}/{arm}, so that they are no repetitions"
            )
        start = {name: value for name, value in record["curve"][0].items() if name not in OF_THE_TARGET}
        if starts.setdefault((part, pair), start) != start:
            raise ValueError(f"{path}: another start than the other runs of pair {pair} of {part}")
        of_task = starts.setdefault((record["task"], pair), start)
        if max(abs(start[name] - of_task[name]) for name in (PRIMARY, HARM)) > SAME_START:
            raise ValueError(f"{path}: another start than pair {pair} of {record['task']} has in other parts")
        records[part, arm, pair] = record
    return Results(study, records)


def at(record: Record, steps: int) -> Record:
    """The last evaluation after at most as many sampled completions as ``steps`` steps of the baseline sample."""
    limit = steps * record["completions_of_a_step"]
    return [point for point in record["curve"] if point["completions"] <= limit][-1]


def is_last(record: Record, steps: int) -> bool:
    """Whether that evaluation is the one of which figures of single problems were kept."""
    return at(record, steps)["step"] == record["steps"]


def effects(
    results: Results,
    part: Part,
    steps: int | None = None,
    measures: Sequence[str] = TESTED,
    against: str = BASELINE,
) -> list[Effect]:
    """Every arm of a part against another at ``steps`` (the part's own last step), p-values adjusted over arms."""
    steps = part.steps if steps is None else steps
    base = results.yardstick(part, against)
    found: list[Effect] = []
    for measure in measures:
        of_arms = [
            effect(results.runs(part.name, arm.name), base, arm.name, measure, steps)
            for arm in part.arms
            if arm.name != against and set(results.runs(part.name, arm.name)) & set(base)
        ]
        known = [each for each in of_arms if each is not None]
        # the A/A arm is a yardstick and no hypothesis
        tested = [each for each in known if each.p is not None and each.arm != AGAIN and measure in TESTED]
        adjusted = dict(zip([each.arm for each in tested], holm([each.p or 0.0 for each in tested]), strict=True))
        found += [_with_holm(each, adjusted.get(each.arm)) for each in known]
    return found


def effect(runs: dict[int, Record], base: dict[int, Record], arm: str, measure: str, steps: int) -> Effect | None:
    """One arm against the baseline in one outcome; None where one of them has no such figure."""
    pairs = sorted(set(runs) & set(base))
    points = [(at(runs[pair], steps), at(base[pair], steps)) for pair in pairs]
    if not points or any(measure not in point for both in points for point in both):
        return None
    differences = [left[measure] - right[measure] for left, right in points]
    has_problems = all(
        measure in record["problems"] and is_last(record, steps)
        for pair in pairs
        for record in (runs[pair], base[pair])
    )
    values = np.array(
        [np.subtract(runs[pair]["problems"][measure], base[pair]["problems"][measure]) for pair in pairs]
        if has_problems
        else [[difference] for difference in differences]
    )
    return _of(arm, measure, differences, values)


def _of(arm: str, measure: str, differences: list[float], values: NDArray[np.float64]) -> Effect:
    """An effect from its differences by pair, and by pair and problem [pairs, problems] where these are known."""
    [interval] = two_level_means(values[:, :, None])
    enough = len(differences) >= LEAST_FOR_TESTS
    return Effect(
        arm, measure, differences,
        Interval(math.fsum(differences) / len(differences), interval.low, interval.high),
        sign_flip(differences).p if enough else None,
        None,
        equivalence(differences) if enough and measure == HARM else None,
    )  # fmt: skip


def _with_holm(found: Effect, p: float | None) -> Effect:
    return Effect(found.arm, found.measure, found.differences, found.interval, found.p, p, found.equivalence)


def spread(runs: dict[int, Record], measure: str, steps: int) -> tuple[float, float] | None:
    """Mean and standard deviation over pairs; None where there is no such figure."""
    values = [point[measure] for point in (at(record, steps) for record in runs.values()) if measure in point]
    return mean_sd(values) if values else None


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; no deviation of one value."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def middle(runs: dict[int, Record], measure: str, steps: int) -> Interval:
    """IQM over pairs with its bootstrap interval."""
    return stratified_iqm([[at(record, steps)[measure] for record in runs.values()]])


def above(runs: dict[int, Record], base: dict[int, Record], measure: str, steps: int) -> Interval:
    """How often a run of an arm scores higher than one of the baseline, whatever their pairs."""
    left, right = ([at(record, steps)[measure] for record in each.values()] for each in (runs, base))
    return probability_of_improvement([left], [right])


def growth(results: Results, part: Part, arm: str, early: int) -> list[float]:
    """By pair, how much larger the difference in the primary outcome is at the last step than at ``early``."""
    runs, base = results.runs(part.name, arm), results.yardstick(part)
    first, last = (effect(runs, base, arm, PRIMARY, steps) for steps in (early, part.steps))
    if first is None or last is None:
        return []
    return [late - soon for late, soon in zip(last.differences, first.differences, strict=True)]


def changes(runs: dict[int, Record], measure: str, steps: int) -> list[float]:
    """By pair, the change of a figure since before training."""
    return [at(record, steps)[measure] - record["curve"][0][measure] for record in runs.values()]


def at_cost(record: Record, measure: str, seconds: float) -> float:
    """A figure after ``seconds`` of CPU time, between two evaluations on the straight line; the last one beyond them."""
    spent, values = ([point[name] for point in record["curve"]] for name in ("cpu_seconds", measure))
    return float(np.interp(seconds, spent, values))


def at_equal_cost(runs: dict[int, Record], base: dict[int, Record], arm: str, measure: str, share: float) -> Effect:
    """One arm against the baseline of its pair once each has spent that ``share`` of what the baseline spent in all."""
    pairs = sorted(set(runs) & set(base))
    limits = [share * base[pair]["curve"][-1]["cpu_seconds"] for pair in pairs]
    differences = [
        at_cost(runs[pair], measure, limit) - at_cost(base[pair], measure, limit)
        for pair, limit in zip(pairs, limits, strict=True)
    ]
    return _of(arm, measure, differences, np.array(differences)[:, None])


def even_share(records: Iterable[Record]) -> float | None:
    """coverage@8 of a policy that is always right and prefers no right answer, over the problems of a task.

    A problem has M = distinct@8 / coverage@8 right answers, whoever answers it, and an even share of them 1 - (1 - 1/M)^8. None
    where figures of single problems were not kept, or a problem is never answered.
    """
    kept = [each["problems"] for each in records if {"distinct@8", "coverage@8"} <= set(each["problems"])]
    if not kept:
        return None
    distinct, coverage = (np.array([problems[name] for problems in kept]) for name in ("distinct@8", "coverage@8"))
    best = coverage.argmax(axis=0), np.arange(coverage.shape[1])  # where rounding to four digits matters least
    if not coverage[best].all():
        return None
    modes = np.rint(distinct[best] / coverage[best])
    return float(np.mean(1 - (1 - 1 / modes) ** 8))

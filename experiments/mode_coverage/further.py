"""Tables of what was asked once the hypotheses were answered, from the same records: nothing here decides a hypothesis."""

from __future__ import annotations

from statistics import fmean

from experiments.mode_coverage.collect import TRAINED
from experiments.mode_coverage.effects import (
    BASELINE,
    HARM,
    LEAST_FOR_TESTS,
    PRIMARY,
    TESTED,
    Results,
    at_equal_cost,
    changes,
    even_share,
    spread,
)  # fmt: skip
from experiments.mode_coverage.table import Part
from experiments.mode_coverage.tables import NOT_RUN, chance, interval_of, mean_and_sd, number, table, up_and_down
from maxent_grpo.stats.seed_tests import sign_flip

CHANGING = (*TESTED, "H_valid")
SHARES = (0.25, 0.5, 1.0)
"""Of the CPU time of the baseline's whole run."""


def since_start(results: Results, part: Part) -> str:
    """What training did to each arm: the last step minus the start of the same pair, with a sign-flip p."""
    lines: list[tuple[str, ...]] = [("arm", "outcome", "start", "end", "change", "pairs up : down", "p sign-flip")]
    for arm in part.arms:
        runs = results.runs(part.name, arm.name)
        for measure in CHANGING:
            before, after = (spread(runs, measure, steps) for steps in (0, part.steps))
            if before is None or after is None:
                continue
            moved = changes(runs, measure, part.steps)
            p = chance(sign_flip(moved).p) if len(moved) >= LEAST_FOR_TESTS else ""
            figures = (number(before[0]), number(after[0]), number(fmean(moved), "+.3f"))
            lines.append((f"`{arm.name}`", measure, *figures, up_and_down(moved), p))
    return table(lines) if len(lines) > 1 else NOT_RUN


def at_equal_cpu_time(results: Results, part: Part) -> str:
    """Each arm minus the baseline of its pair when both have spent a share of the CPU time that the baseline's run took."""
    base = results.yardstick(part)
    lines: list[tuple[str, ...]] = [
        ("arm", "outcome", *(f"at {share:.0%} of its time" for share in SHARES), "pairs up : down at 100%")
    ]
    for arm in part.arms:
        runs = results.runs(part.name, arm.name)
        if arm.name == BASELINE or not set(runs) & set(base):
            continue
        for measure in (PRIMARY, HARM):
            found = [at_equal_cost(runs, base, arm.name, measure, share) for share in SHARES]
            lines.append((f"`{arm.name}`", measure, *map(interval_of, found), up_and_down(found[-1].differences)))
    return table(lines) if len(lines) > 1 else NOT_RUN


def ceiling(results: Results, part: Part) -> str:
    """What a policy without preferences would come to in the primary outcome."""
    share = even_share(record for (of, _, _), record in results.records.items() if of == part.name)
    if share is None:
        return ""
    return f"A policy that is always right and prefers no right answer would come to {PRIMARY} {number(share)}."


def on_training_problems(results: Results, part: Part) -> str:
    """Mean ± sd over pairs of the start and of every arm's end, on the problems that they were trained on."""
    lines: list[tuple[str, ...]] = [("arm", "runs", *TESTED)]
    for arm in part.arms:
        asked = [record[TRAINED] for record in results.runs(part.name, arm.name).values() if TRAINED in record]
        places = (0, -1) if len(lines) == 1 else (-1,)
        for place in places if asked else ():
            name = f"`{arm.name}`" if place else "start"
            figures = ([points[place][measure] for points in asked] for measure in TESTED)
            lines.append((name, str(len(asked)), *map(mean_and_sd, figures)))
    return table(lines) if len(lines) > 1 else NOT_RUN

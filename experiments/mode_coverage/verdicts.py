"""What the pre-registered hypotheses came to, in words that follow from the numbers alone."""

from __future__ import annotations

from statistics import fmean

from experiments.mode_coverage.effects import (
    AGAIN,
    BASELINE,
    HARM,
    LEAST_FOR_TESTS,
    PRIMARY,
    Effect,
    Results,
    changes,
    effect,
    growth,
)  # fmt: skip
from experiments.mode_coverage.table import Part
from experiments.mode_coverage.tables import chance
from maxent_grpo.stats.seed_tests import equivalence, sign_flip

LEVEL = 0.05
EARLY = 200
NEED = "not run yet"


def verdicts(results: Results) -> list[str]:
    """A line for each hypothesis."""
    parts = results.study.parts
    coloring, countdown = parts["confirmatory"], parts["countdown"]
    return [
        f"- **H1** (coverage@8 of `maxent` above `dr_grpo`, coloring): {_higher(results, coloring, 'maxent')}",
        f"- **H2** (pass@1 no worse by 3 points, coloring): {_no_harm(results, coloring, 'maxent')}",
        f"- **H3** (the difference grows after step {EARLY}): {_grows(results, coloring)}",
        f"- **H4** (`dr_grpo` loses coverage@8): {_forgets(results, coloring)}",
        f"- **H5** (countdown): coverage@8 {_higher(results, countdown, 'maxent')}; "
        f"pass@1 {_no_harm(results, countdown, 'maxent')}",
        f"- The pilot's coefficient (`maxent_pilot`): coverage@8 {_higher(results, coloring, 'maxent_pilot')}; "
        f"pass@1 {_no_harm(results, coloring, 'maxent_pilot')}",
        *(
            f"- `{arm}` does what `maxent` does: {_as_good(results, coloring, arm)}"
            for arm in ("dr_grpo_hot", "uniqueness", "soft")
        ),
    ]


def _p(value: float) -> str:
    text = chance(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def _found(results: Results, part: Part, arm: str, measure: str) -> Effect | None:
    return effect(results.runs(part.name, arm), results.baseline(part), arm, measure, part.steps)


def _state(results: Results, part: Part) -> str:
    return "" if results.is_complete(part) else " (the part is not finished)"


def _higher(results: Results, part: Part, arm: str) -> str:
    found = _found(results, part, arm, PRIMARY)
    if found is None or found.p is None:
        return NEED
    word = "**holds**" if found.p < LEVEL and found.mean > 0 else "**does not hold**"
    again = _found(results, part, AGAIN, PRIMARY)
    if again is not None and again.p is not None and again.p < LEVEL:
        far = max(abs(again.interval.low), abs(again.interval.high))
        if found.mean <= far:
            word = "**does not hold**: no larger than the difference of two runs of the baseline"
    return f"{word}, {found.mean:+.3f}, {_p(found.p)}{_state(results, part)}"


def _no_harm(results: Results, part: Part, arm: str) -> str:
    found = _found(results, part, arm, HARM)
    if found is None or found.equivalence is None:
        return NEED
    tests = found.equivalence
    word = "**holds**" if tests.p_above < LEVEL else "**does not hold**"
    equal = "equal within 3 points" if tests.p < LEVEL else "not shown to be equal within 3 points"
    return f"{word}, {found.mean:+.3f}, {_p(tests.p_above)}; {equal} (TOST {_p(tests.p)}){_state(results, part)}"


def _grows(results: Results, part: Part) -> str:
    return _change(growth(results, part, "maxent", EARLY), 1, _state(results, part))


def _forgets(results: Results, part: Part) -> str:
    return _change(changes(results.runs(part.name, BASELINE), PRIMARY, part.steps), -1, _state(results, part))


def _change(values: list[float], sign: int, state: str) -> str:
    if len(values) < LEAST_FOR_TESTS:
        return NEED
    p = sign_flip(values).p
    word = "**holds**" if p < LEVEL and sign * fmean(values) > 0 else "**does not hold**"
    return f"{word}, {fmean(values):+.3f}, {_p(p)}{state}"


def _as_good(results: Results, part: Part, arm: str) -> str:
    """Whether an arm is no lower than ``maxent`` by 3 points in coverage@8 and in pass@1."""
    runs, best = results.runs(part.name, arm), results.runs(part.name, "maxent")
    found = [effect(runs, best, arm, measure, part.steps) for measure in (PRIMARY, HARM)]
    if any(each is None or len(each.differences) < LEAST_FOR_TESTS for each in found):
        return NEED
    ps = [equivalence(each.differences).p_above for each in found if each is not None]
    means = [each.mean for each in found if each is not None]
    word = "**yes**" if max(ps) < LEVEL else "**no**"
    return f"{word}, coverage@8 {means[0]:+.3f}, pass@1 {means[1]:+.3f} against it{_state(results, part)}"

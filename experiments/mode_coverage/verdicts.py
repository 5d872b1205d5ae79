"""What the pre-registered hypotheses came to, in words that follow from the numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from experiments.mode_coverage.effects import (
    AGAIN,
    BASELINE,
    HARM,
    PRIMARY,
    TERM,
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
Verdict = tuple[bool | None, str]
"""Whether a hypothesis holds, None while its part is not finished, and that in words with the numbers."""


def verdicts(results: Results) -> list[str]:
    """A line for each hypothesis; a part that is not finished decides none."""
    parts = results.study.parts
    both = {"colouring": parts["confirmatory"], "countdown": parts["countdown"]}
    coloring, countdown = both.values()
    higher, no_harm = _higher(results, coloring, TERM), _no_harm(results, coloring, TERM)
    there = _higher(results, countdown, TERM), _no_harm(results, countdown, TERM)
    claims = zip(both, ((higher, no_harm), there), ("H1 and H2", "H5"), strict=True)
    grown, lost = (
        "; ".join(f"{task} {found(results, part)}" for task, part in both.items()) for found in (_grows, _forgets)
    )
    return [
        *(f"- **The claim on {task}** ({which}): {_word(_all(found))}" for task, found, which in claims),
        f"- **H1** (coverage@8 of `maxent` above `dr_grpo`, colouring): {higher[1]}",
        f"- **H2** (pass@1 no worse by 3 points, colouring): {no_harm[1]}",
        f"- **H3** (the difference of coverage@8 grows after step {EARLY}): {grown}",
        f"- **H4** (`dr_grpo` ends with less coverage@8 than it began with): {lost}",
        f"- **H5** (both on countdown): coverage@8 {there[0][1]}; pass@1 {there[1][1]}",
        f"- The pilot's coefficient (`maxent_pilot`): coverage@8 {_higher(results, coloring, 'maxent_pilot')[1]}; "
        f"pass@1 {_no_harm(results, coloring, 'maxent_pilot')[1]}",
        *(
            f"- `{arm}` does what `maxent` does: {_as_good(results, coloring, arm)}"
            for arm in ("dr_grpo_hot", "uniqueness", "soft")
        ),
    ]


def _word(holds: bool | None) -> str:
    return {True: "**holds**", False: "**does not hold**", None: "not decided yet"}[holds]


def _all(found: Sequence[Verdict]) -> bool | None:
    words = [holds for holds, _ in found]
    return None if None in words else all(words)


def _p(value: float) -> str:
    text = chance(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def _found(results: Results, part: Part, arm: str, measure: str) -> Effect | None:
    """An arm's effect once the whole part is there."""
    if not results.is_complete(part):
        return None
    return effect(results.runs(part.name, arm), results.yardstick(part), arm, measure, part.steps)


def _open(results: Results, part: Part) -> Verdict:
    return None, f"not decided yet ({results.finished(part)} of {part.runs} runs)"


def _higher(results: Results, part: Part, arm: str) -> Verdict:
    found, again = (_found(results, part, name, PRIMARY) for name in (arm, AGAIN))
    if found is None or found.p is None:
        return _open(results, part)
    holds, why = found.p < LEVEL and found.mean > 0, ""
    if again is not None and again.p is not None and again.p < LEVEL:
        far = max(abs(again.interval.low), abs(again.interval.high))
        if found.mean <= far:
            holds, why = False, ": no larger than the difference of two runs of the baseline"
    return holds, f"{_word(holds)}{why}, {found.mean:+.3f}, {_p(found.p)}"


def _no_harm(results: Results, part: Part, arm: str) -> Verdict:
    found = _found(results, part, arm, HARM)
    if found is None or found.equivalence is None or found.p is None:
        return _open(results, part)
    tests = found.equivalence
    holds = tests.p_above < LEVEL
    equal = "equal within 3 points" if tests.p < LEVEL else "not shown to be equal within 3 points"
    moved = f"{found.mean:+.3f} (different from 0: {_p(found.p)}; above -.03: {_p(tests.p_above)})"
    return holds, f"{_word(holds)}, {moved}; {equal} (TOST {_p(tests.p)})"


def _grows(results: Results, part: Part) -> str:
    return _change(results, part, growth(results, part, TERM, EARLY), 1)


def _forgets(results: Results, part: Part) -> str:
    return _change(results, part, changes(results.runs(part.name, BASELINE), PRIMARY, part.steps), -1)


def _change(results: Results, part: Part, values: list[float], sign: int) -> str:
    if not results.is_complete(part):
        return _open(results, part)[1]
    p = sign_flip(values).p
    return f"{_word(p < LEVEL and sign * fmean(values) > 0)}, {fmean(values):+.3f}, {_p(p)}"


def _as_good(results: Results, part: Part, arm: str) -> str:
    """Whether an arm is no lower than ``maxent`` by 3 points in coverage@8 and in pass@1."""
    runs, best = results.runs(part.name, arm), results.runs(part.name, TERM)
    found = [effect(runs, best, arm, measure, part.steps) for measure in (PRIMARY, HARM)]
    if not results.is_complete(part) or None in found:
        return _open(results, part)[1]
    known = [each for each in found if each is not None]
    ps = [equivalence(each.differences).p_above for each in known]
    word = "**yes**" if all(p < LEVEL for p in ps) else "**no**"
    told = (f"{each.measure} {each.mean:+.3f} (above -.03: {_p(p)})" for each, p in zip(known, ps, strict=True))
    return f"{word}, {', '.join(told)} against it"

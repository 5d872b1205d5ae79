"""The study's tables as Markdown, from the records alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.mode_coverage.collect import DIVERGED
from experiments.mode_coverage.effects import (
    AGAIN,
    BASELINE,
    HARM,
    MEASURES,
    PRIMARY,
    TESTED,
    Effect,
    Record,
    Results,
    at,
    effects,
    middle,
    spread,
)  # fmt: skip
from experiments.mode_coverage.table import Part

NOT_RUN = "Not run yet."
TITLES = {"kl_to_optimum": "KL(π*‖π)", "H_valid": "H_valid"}
SIGNED = "+.3f"


def levels(results: Results, part: Part, steps: int | None = None, of: Sequence[str] = MEASURES) -> str:
    """Mean ± sd over pairs of the measures of every arm at ``steps``; the first row is the start."""
    steps = part.steps if steps is None else steps
    base = results.baseline(part)
    arms = [(arm.name, results.runs(part.name, arm.name)) for arm in part.arms]
    ran = [(name, runs) for name, runs in arms if runs]
    if not ran:
        return NOT_RUN
    if BASELINE not in dict(ran) and base:
        pairs = {pair for _, runs in ran for pair in runs}
        ran.insert(0, (BASELINE, {pair: record for pair, record in base.items() if pair in pairs}))
    measures = [name for name in of if any(spread(runs, name, steps) for _, runs in ran)]
    lines: list[tuple[str, ...]] = [("arm", "runs", *(TITLES.get(name, name) for name in measures), "CPU s")]
    start = ran[0][1]
    lines.append(("start", str(len(start)), *(_spread(spread(start, name, 0)) for name in measures), ""))
    for name, runs in ran:
        figures = (_spread(spread(runs, measure, steps)) for measure in measures)
        lines.append((f"`{name}`", str(len(runs)), *figures, _cost(runs, steps)))
    ended = [
        f"\n`{name}` of pair {pair} diverged: it counts with its last evaluation, at step {at(record, steps)['step']}."
        for name, runs in ran
        for pair, record in runs.items()
        if DIVERGED in record
    ]
    return _table(lines) + "".join(ended)


def differences(results: Results, part: Part, steps: int | None = None) -> str:
    """Each arm minus the baseline of its pair, with interval, p, and the A/A interval beside the primary outcome."""
    found = effects(results, part, steps)
    if not found:
        return NOT_RUN
    with_p = any(each.p is not None for each in found)
    heads = ("arm", "outcome", "difference [95%]", "pairs up : down")
    tests = ("p sign-flip", "p Holm", "p not worse", "p equal") if with_p else ()
    lines: list[tuple[str, ...]] = [(*heads, *tests)]
    for each in found:
        if each.measure not in TESTED:
            continue
        up, down = (sum(sign * value > 0 for value in each.differences) for sign in (1, -1))
        row = (f"`{each.arm}`", each.measure, _interval(each), f"{up} : {down}")
        lines.append(row + (_tests(each) if with_p else ()))
    return _table(lines) + _yardstick(found)


def middles(results: Results, part: Part) -> str:
    """IQM over pairs with its interval, of the primary outcome and of pass@1."""
    ran = [(arm.name, results.runs(part.name, arm.name)) for arm in part.arms]
    ran = [(name, runs) for name, runs in ran if runs]
    if not ran:
        return NOT_RUN
    lines: list[tuple[str, ...]] = [("arm", f"IQM {PRIMARY} [95%]", f"IQM {HARM} [95%]")]
    for name, runs in ran:
        found = (middle(runs, measure, part.steps) for measure in (PRIMARY, HARM))
        lines.append((f"`{name}`", *(f"{_plain(each.mean)} {_bounds(each.low, each.high, '.3f')}" for each in found)))
    return _table(lines)


def cost(results: Results) -> str:
    """What the finished runs took, by part."""
    lines: list[tuple[str, ...]] = [("part", "runs", "CPU hours", "CPU seconds a run")]
    for part in results.study.parts.values():
        seconds = [record["cpu_seconds"] for (of, _, _), record in results.records.items() if of == part.name]
        if seconds:
            total, whole = sum(seconds), f"{len(seconds)} of {len(part.arms) * len(part.pairs)}"
            lines.append((part.name, whole, f"{total / 3600:.2f}", f"{total / len(seconds):.0f}"))
    return _table(lines) if len(lines) > 1 else NOT_RUN


def _yardstick(found: Sequence[Effect]) -> str:
    again = next((each for each in found if (each.arm, each.measure) == (AGAIN, PRIMARY)), None)
    if again is None:
        return ""
    return f"\nTwo runs of the baseline differ in {PRIMARY} by {_interval(again)}: what is no larger is no effect."


def _tests(each: Effect) -> tuple[str, str, str, str]:
    same = each.equivalence
    return (_p(each.p), _p(each.p_holm), _p(same.p_above if same else None), _p(same.p if same else None))


def _cost(runs: dict[int, Record], steps: int) -> str:
    seconds = [at(record, steps)["cpu_seconds"] for record in runs.values()]
    return f"{sum(seconds) / len(seconds):.0f}"


def _p(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else chance(value)


def chance(p: float) -> str:
    """A p-value; one that four digits would make 0 is said to be below what they show."""
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _interval(each: Effect) -> str:
    return f"{_plain(each.mean, SIGNED)} {_bounds(each.interval.low, each.interval.high, SIGNED)}"


def _bounds(low: float, high: float, form: str) -> str:
    return "" if math.isnan(low) else f"[{_plain(low, form)}, {_plain(high, form)}]"


def _spread(value: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    return _plain(value[0]) if math.isnan(value[1]) else f"{_plain(value[0])} ± {_plain(value[1])}"


def _plain(value: float, form: str = ".3f") -> str:
    """A number as papers print it: .525, not 0.525."""
    return format(value, form).replace("0.", ".", 1) if abs(value) < 1 else format(value, form)


def _table(lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([rows[0], f"|{'---|' * len(lines[0])}", *rows[1:]]) + "\n"

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
    TERM,
    Effect,
    Record,
    Results,
    above,
    at,
    effects,
    mean_sd,
    middle,
    spread,
)  # fmt: skip
from experiments.mode_coverage.table import Part
from maxent_grpo.stats.compare import Interval

NOT_RUN = "Not run yet."
TITLES = {"kl_to_optimum": "KL(π*‖π)", "H_valid": "H_valid"}
SIGNED = "+.3f"


def levels(results: Results, part: Part, steps: int | None = None, of: Sequence[str] = MEASURES) -> str:
    """Mean ± sd over pairs of the measures of every arm at ``steps``; the first row is the start."""
    steps = part.steps if steps is None else steps
    arms = [(arm.name, results.runs(part.name, arm.name)) for arm in part.arms]
    ran = [(name, runs) for name, runs in arms if runs]
    if not ran:
        return NOT_RUN
    pairs = {pair for _, runs in ran for pair in runs}
    for name in (TERM, BASELINE):  # of the confirmatory part, where a part is read beside it
        lent = {pair: record for pair, record in results.yardstick(part, name).items() if pair in pairs}
        if name not in dict(ran) and lent:
            ran.insert(0, (name, lent))
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
    return table(lines) + "".join(ended) + _unfinished(results, part)


def _unfinished(results: Results, part: Part) -> str:
    if results.is_complete(part):
        return ""
    return f"\nThe part is not finished: {results.finished(part)} of {part.runs} runs.\n"


def differences(results: Results, part: Part, steps: int | None = None, against: str = BASELINE) -> str:
    """Each arm minus another of its pair, with interval, p, and the A/A interval beside the primary outcome."""
    found = effects(results, part, steps, against=against)
    beside = _yardstick(found) if against == BASELINE else ""
    return _differences(found) + beside + _unfinished(results, part) if found else NOT_RUN


def _differences(found: Sequence[Effect]) -> str:
    with_p = any(each.p is not None for each in found)
    heads = ("arm", "outcome", "difference [95%]", "pairs up : down")
    tests = ("p sign-flip", "p Holm", "p not worse", "p equal") if with_p else ()
    lines: list[tuple[str, ...]] = [(*heads, *tests)]
    for each in found:
        row = (f"`{each.arm}`", each.measure, interval_of(each), up_and_down(each.differences))
        lines.append(row + (_tests(each) if with_p else ()))
    return table(lines)


def middles(results: Results, part: Part) -> str:
    """IQM over pairs with its interval, of the primary outcome and of pass@1, and how often an arm's run is above a baseline's."""
    ran = [(arm.name, results.runs(part.name, arm.name)) for arm in part.arms]
    ran = [(name, runs) for name, runs in ran if runs]
    if not ran:
        return NOT_RUN
    heads = [f"{words} {measure} [95%]" for measure in (PRIMARY, HARM) for words in ("IQM", f"P(above `{BASELINE}`)")]
    lines: list[tuple[str, ...]] = [("arm", *heads)]
    base = results.yardstick(part)
    for name, runs in ran:
        row: list[str] = []
        for measure in (PRIMARY, HARM):
            row.append(_with_bounds(middle(runs, measure, part.steps)))
            row.append(_with_bounds(above(runs, base, measure, part.steps)) if base and name != BASELINE else "")
        lines.append((f"`{name}`", *row))
    return table(lines)


def cost(results: Results) -> str:
    """What the finished runs took, by part."""
    lines: list[tuple[str, ...]] = [("part", "runs", "CPU hours", "CPU seconds a run")]
    for part in results.study.parts.values():
        seconds = [record["cpu_seconds"] for (of, _, _), record in results.records.items() if of == part.name]
        if seconds:
            total, whole = sum(seconds), f"{len(seconds)} of {part.runs}"
            lines.append((part.name, whole, f"{total / 3600:.2f}", f"{total / len(seconds):.0f}"))
    return table(lines) if len(lines) > 1 else NOT_RUN


def _yardstick(found: Sequence[Effect]) -> str:
    again = next((each for each in found if (each.arm, each.measure) == (AGAIN, PRIMARY)), None)
    if again is None:
        return ""
    single = sum(map(abs, again.differences)) / len(again.differences)
    p = "" if again.p is None else f", p = {chance(again.p)}"
    return (
        f"\nTwo runs of the baseline differ in {PRIMARY} by {interval_of(again)}{p}, and those of a single pair by "
        f"{number(single)} one way or the other.\n"
    )


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


def up_and_down(values: Sequence[float]) -> str:
    """In how many pairs a figure is higher, and in how many lower."""
    return " : ".join(str(sum(sign * value > 0 for value in values)) for sign in (1, -1))


def interval_of(each: Effect) -> str:
    """A mean difference with its interval."""
    return f"{number(each.mean, SIGNED)} {_bounds(each.interval.low, each.interval.high, SIGNED)}"


def _bounds(low: float, high: float, form: str) -> str:
    return "" if math.isnan(low) else f"[{number(low, form)}, {number(high, form)}]"


def _with_bounds(found: Interval) -> str:
    return f"{number(found.mean)} {_bounds(found.low, found.high, '.3f')}".rstrip()


def mean_and_sd(values: Sequence[float]) -> str:
    """Mean ± sd of some figures."""
    return _spread(mean_sd(values))


def _spread(value: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    return number(value[0]) if math.isnan(value[1]) else f"{number(value[0])} ± {number(value[1])}"


def number(value: float, form: str = ".3f") -> str:
    """A number as papers print it: .525, not 0.525."""
    return format(value, form).replace("0.", ".", 1) if abs(value) < 1 else format(value, form)


def table(lines: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table; the first has the heads."""
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([rows[0], f"|{'---|' * len(lines[0])}", *rows[1:]]) + "\n"

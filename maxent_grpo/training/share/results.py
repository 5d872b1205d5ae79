"""The results table of a model card: held-out figures before training, at the weights in the folder, and at their best."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from maxent_grpo.config.root import RootConfig
from maxent_grpo.report.read import EVALUATIONS_FILE, iterate_jsonl, metric_series
from maxent_grpo.report.record import RunRecord

SHOWN = {
    "greedy": "right when the most likely token is taken each time",
    "pass@": "a right one among k samples, unbiased; for k = 1 the share of samples that are right",
    "maj@": "the most frequent answer of k samples is right",
    "coverage@": "share of all right answers found in k samples",
    "mean_length": "tokens of a completion",
}
"""Figures of a card in this order, by how their names begin, with their meaning."""
SAME_AT_ONE = ("maj@1", "coverage@1")
"""Figures that say of one sample what pass@1 says."""
WITHOUT_BEST = ("mean_length",)

Rows = Sequence[Mapping[str, Any]]


def results(record: RunRecord, config: RootConfig, step: int) -> str:
    """The section, or a sentence where nothing was evaluated."""
    names = _names(record.rows)
    if not names:
        return "## Results\n\nThe run made no evaluation on held-out problems."
    evaluation, generation = config.evaluation, config.generation
    temperature = generation.temperature if evaluation.temperature is None else evaluation.temperature
    first, here = _ends(record.rows, names[0], step)
    lines = [
        "## Results",
        "",
        f"Held-out problems{_how_many(record)}, {evaluation.num_samples} samples of each at temperature {temperature:g}, by the run "
        f"itself; the same problems and random numbers each time.",
        "",
        f"| figure | meaning | step {first} | step {here} | best of the run |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(record.rows, name, first, here) for name in names]
    if here != step:
        lines += ["", f"These weights are those of step {step}; step {here} is the evaluation nearest before it."]
    return "\n".join(lines)


def _how_many(record: RunRecord) -> str:
    """The number of problems, where the run recorded each of them."""
    path = record.run_dir / EVALUATIONS_FILE
    rows = {row.get("row_id") for _, row in iterate_jsonl(path)} if path.is_file() else set()
    return f" ({len(rows)})" if rows else ""


def _names(rows: Rows) -> list[str]:
    found = {name for row in rows for name in row if name.startswith("eval/")}
    shown = []
    for start in SHOWN:
        mine = [
            name
            for name in found
            if (label := name.removeprefix("eval/")).startswith(start) and label not in SAME_AT_ONE
        ]
        shown += sorted(mine, key=lambda name: int((re.findall(r"\d+$", name) or [0])[0]))
    return shown


def _ends(rows: Rows, name: str, step: int) -> tuple[int, int]:
    """The first evaluation, and the last one that the weights of ``step`` have seen."""
    steps = metric_series(rows, name)[0]
    return steps[0], max((at for at in steps if at <= step), default=steps[0])


def _row(rows: Rows, name: str, first: int, here: int) -> str:
    steps, values = metric_series(rows, name)
    by_step = dict(zip(steps, values, strict=True))
    label = name.removeprefix("eval/")
    best = "" if label in WITHOUT_BEST else max(zip(values, (-at for at in steps), strict=True))
    shown = f"{best[0]:.3f} (step {-best[1]})" if best else ""
    meaning = next(text for start, text in SHOWN.items() if label.startswith(start))
    return f"| {label} | {meaning} | {_number(by_step.get(first))} | {_number(by_step.get(here))} | {shown} |"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"

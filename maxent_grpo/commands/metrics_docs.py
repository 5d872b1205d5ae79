"""`python -m maxent_grpo metrics-docs`: write the reference of the metrics."""

from __future__ import annotations

from pathlib import Path

from maxent_grpo.commands.generated_page import page_file, write_page
from maxent_grpo.training.metric_goals import better
from maxent_grpo.training.metric_table import METRICS, UNREPRODUCED, MetricInfo
from maxent_grpo.training.types.metric_groups import GROUPS

PAGE = "metrics.md"
HEADER = """\
# Metrics

Every number that a run writes to `metrics.jsonl`, one line an optimiser step. A name ending in `*` stands for a family, such
as `reward/term/task`; a unit of 1 is a pure number or a share. Means over tokens and completions are those of the whole
optimiser step, whatever the size of its slices.

This page is written by `python -m maxent_grpo metrics-docs` from the table in `maxent_grpo/training/metric_table.py`.
"""


def metrics_file() -> Path:
    """Where the reference stands in the repository."""
    return page_file(PAGE)


def metrics_reference() -> str:
    """The text of docs/metrics.md."""
    parts = [HEADER]
    for prefix, group in GROUPS.items():
        rows = {name: info for name, info in METRICS.items() if name.startswith(prefix)}
        parts.append(f"## `{prefix}`\n\n{group.about} Measured by `{group.source}`; {group.axis}.\n\n{_table(rows)}")
    machine = ", ".join(f"`{prefix}`" for prefix in UNREPRODUCED)
    parts.append(f"Everything but {machine} is equal, bit for bit, in two equal runs on the CPU.\n")
    return "\n".join(parts)


def _table(rows: dict[str, MetricInfo]) -> str:
    lines = ["| metric | unit | better | meaning | appears when |", "|---|---|---|---|---|"]
    for name, info in rows.items():
        cells = (
            f"`{name}`",
            info.unit,
            {"max": "larger", "min": "smaller"}.get(better(name) or "", ""),
            info.meaning,
            info.when or "always",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Write the reference, or with --check say whether it is up to date (exit status 1 if not)."""
    write_page(
        arguments,
        "metrics-docs",
        PAGE,
        metrics_reference,
        "Write docs/metrics.md: every metric with its meaning, unit, where it is measured and when it appears, from the one "
        "table of metrics.",
    )

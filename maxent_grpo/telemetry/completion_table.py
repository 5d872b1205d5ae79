"""Recorded completions as trackers show them: rows of a table, or paragraphs of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = (
    *("step", "row_id", "prompt", "completion", "utility", "advantage", "weight", "q"),
    *("mode", "reason", "finish_reason", "num_tokens", "policy_version"),
)
"""Columns of every table; one for each reward term follows."""
_TEXTS = ("row_id", "prompt", "completion", "mode", "reason", "finish_reason")


def table_columns(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of a table of these records, one for each reward term last."""
    terms = dict.fromkeys(name for record in records for name in record.get("rewards", {}))
    return [*COLUMNS, *(f"reward/{name}" for name in terms)]


def table_rows(step: int, records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[list[Any]]:
    """One row a record, its values in the order of the columns; None where it has none."""
    return [[_cell(step, record, column) for column in columns] for record in records]


def completions_text(records: Sequence[Mapping[str, Any]]) -> str:
    """The completions of a step as Markdown; what a model wrote stands in code blocks, whatever it holds."""
    return "\n\n".join(_paragraph(record) for record in records)


def _cell(step: int, record: Mapping[str, Any], column: str) -> Any:
    if column == "step":
        return step
    prefix, _, term = column.partition("/")
    value = record.get("rewards", {}).get(term) if prefix == "reward" else record.get(column)
    return str(value) if column in _TEXTS and value is not None else value


def _paragraph(record: Mapping[str, Any]) -> str:
    numbers = [f"{name} {_number(record.get(name))}" for name in ("utility", "advantage", "weight")]
    numbers += [f"{name} {_number(value)}" for name, value in record.get("rewards", {}).items()]
    numbers.append(f"{record.get('num_tokens')} tokens, {record.get('finish_reason')}")
    text = f"{record.get('prompt', '')}\n---\n{record.get('completion', '')}"
    block = "\n".join(f"    {line}" for line in text.splitlines())
    return f"`{record.get('row_id')}`: {'; '.join(numbers)}\n\n{block}"


def _number(value: Any) -> str:
    return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

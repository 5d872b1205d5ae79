"""The record of a run of one process against that of the same run in several: what is equal, and what cannot be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from maxent_grpo.training.metric_table import UNREPRODUCED

TOLERANCE = 1e-5
EXACT = 1e-12
"""Of a held-out row's exact figures."""
NOT_EQUAL = {
    "scoring/forward_passes": "each process cuts its own groups into slices, and makes idle passes where it has fewer than another",
    "scoring/fed_tokens": "an idle pass feeds one row",
    "scoring/scored_tokens": "an idle pass scores one row",
    "scoring/padding_ratio": "an idle pass is counted among them",
}
"""Metrics that depend on how a step is shared out, each with the reason."""


def assert_same_lines(one: Sequence[dict[str, float]], several: Sequence[dict[str, float]]) -> None:
    """Equal names and numbers on every line, but for what is ``NOT_EQUAL`` or measures the machine."""
    assert [line["step"] for line in one] == [line["step"] for line in several]
    for left, right in zip(one, several, strict=True):
        names, others = _comparable(left), _comparable(right)
        assert names == others, f"step {left['step']}: {names ^ others}"
        wrong = {name: (left[name], right[name]) for name in names if not is_close(left[name], right[name])}
        assert not wrong, f"step {left['step']}: {wrong}"


def assert_same_completions(one: Sequence[dict[str, Any]], several: Sequence[dict[str, Any]]) -> None:
    """The same completions in the same order, with numbers that are equal to rounding."""
    assert [_identity(record) for record in one] == [_identity(record) for record in several]
    for left, right in zip(one, several, strict=True):
        assert left.keys() == right.keys()
        wrong = {name: (left[name], right[name]) for name in left if not _is_same(left[name], right[name])}
        assert not wrong, f"{_identity(left)}: {wrong}"


def assert_same_evaluations(one: Sequence[dict[str, Any]], several: Sequence[dict[str, Any]]) -> None:
    """The same rows in the same order, sampled alike, and exact figures equal to rounding."""
    for left, right in zip(one, several, strict=True):
        figures, others = left["exact"] or {}, right["exact"] or {}
        assert {**left, "exact": None} == {**right, "exact": None}
        assert figures.keys() == others.keys()
        for name, value in figures.items():
            assert math.isclose(value, others[name], rel_tol=EXACT, abs_tol=EXACT), (name, value, others[name])


def is_close(left: float, right: float) -> bool:
    """Equal to 1e-5, of the number where it is large."""
    return math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (math.isnan(left) and math.isnan(right))


def _comparable(line: dict[str, float]) -> set[str]:
    return {name for name in line if name not in NOT_EQUAL and not name.startswith(UNREPRODUCED)}


def _identity(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["step"], record["row_id"], record["completion"]


def _is_same(left: Any, right: Any) -> bool:
    return is_close(left, right) if isinstance(left, float) and isinstance(right, float) else left == right

"""What changing a setting must do, given what a run without and a run with the change left behind."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from support.observe import Seen

Effect = Callable[[Seen, Seen], None]
"""Asserts what a change does, given the run without and the run with it."""


def largest_weight_change(before: Seen, after: Seen) -> float:
    """Infinite when the weights are not even of one form."""
    forms = [{name: (w.shape, w.dtype) for name, w in seen.weights.items()} for seen in (before, after)]
    if forms[0] != forms[1]:
        return float("inf")
    return max(float((before.weights[name] - after.weights[name]).abs().max()) for name in before.weights)


def trains(before: Seen, after: Seen) -> None:
    """Other weights at the end."""
    assert largest_weight_change(before, after) > 1e-5


def same_training(before: Seen, after: Seen) -> None:
    """Equal losses and weights, up to the rounding of another order of sums."""
    for name in ("loss/total", "reward/mean", "optim/gradient_norm"):
        assert after.series(name) == pytest.approx(before.series(name), rel=1e-5, abs=1e-6), name
    assert largest_weight_change(before, after) < 1e-4


def path(count: str) -> Effect:
    """The same training by another way, seen in a count."""

    def check(before: Seen, after: Seen) -> None:
        same_training(before, after)
        assert before.counts[count] != after.counts[count], (before.counts[count], after.counts[count])

    return check


def measures(name: str) -> Effect:
    """Identical training; a metric comes, goes or changes."""

    def check(before: Seen, after: Seen) -> None:
        assert largest_weight_change(before, after) == 0
        assert before.series(name) != after.series(name)

    return check


def evaluates(before: Seen, after: Seen) -> None:
    """Identical training, other evaluations."""
    assert largest_weight_change(before, after) == 0
    assert before.evaluations != after.evaluations


def stops_measuring(prefix: str) -> Effect:
    """Identical training; the evaluation figures named so are gone, all others as before."""

    def check(before: Seen, after: Seen) -> None:
        assert largest_weight_change(before, after) == 0
        kept = [{name: line[name] for name in line if not name.startswith(prefix)} for line in before.evaluations]
        assert kept == after.evaluations != before.evaluations

    return check


def changes_alone(*names: str) -> Effect:
    """Identical training; of all evaluation figures, only these are others."""

    def check(before: Seen, after: Seen) -> None:
        assert largest_weight_change(before, after) == 0
        pairs = zip(before.evaluations, after.evaluations, strict=True)
        changed = {name for left, right in pairs for name in left | right if left.get(name) != right.get(name)}
        assert changed == set(names)

    return check


def evaluates_alike(count: str) -> Effect:
    """Identical training and evaluations, seen in a count."""

    def check(before: Seen, after: Seen) -> None:
        assert largest_weight_change(before, after) == 0
        assert before.evaluations == after.evaluations
        assert before.counts[count] != after.counts[count]

    return check


def writes(*names: str) -> Effect:
    """Identical weights at the end; these names in the run directory come or go, and no others."""

    def check(before: Seen, after: Seen) -> None:
        assert largest_weight_change(before, after) == 0
        assert before.files ^ after.files == set(names)

    return check


def lasts(steps: int) -> Effect:
    """Ends after another number of steps."""

    def check(before: Seen, after: Seen) -> None:
        assert before.steps != after.steps == steps

    return check


def adapts(before: Seen, after: Seen) -> None:
    """Another tau, but the first."""
    first, second = before.series("controller/tau"), after.series("controller/tau")
    assert first[0] == second[0]
    assert first[-1] != second[-1]


def names_best(before: Seen, after: Seen) -> None:
    """Another checkpoint is the best."""
    best = [(seen.run_dir / "checkpoints" / "best").read_text() for seen in (before, after)]
    assert best[0] != best[1]


def records(before: Seen, after: Seen) -> None:
    """Identical training, fewer lines in the completions file."""
    assert largest_weight_change(before, after) == 0
    lengths = [len((seen.run_dir / "completions.jsonl").read_text().splitlines()) for seen in (before, after)]
    assert 0 < lengths[1] < lengths[0]


def uses_threads(before: Seen, after: Seen) -> None:
    assert (before.counts["threads"], after.counts["threads"]) == (1, 2)
    same_training(before, after)


def computes_on_cpu(before: Seen, after: Seen) -> None:
    assert re.search(r"device +cpu", (after.run_dir / "run.log").read_text())
    assert torch.cuda.is_available() or largest_weight_change(before, after) == 0

"""Two run directories that hold the same run."""

from __future__ import annotations

from pathlib import Path

from support.identical import assert_identical
from support.runs import checkpoint_of, completion_lines, metric_lines, state_of, weights_of


def assert_same_run(left: Path, right: Path, *, but: str | None = None) -> None:
    """Weights, every registered state and both records are equal, ``but`` for one metric where its lines are not."""
    here, there = checkpoint_of(left), checkpoint_of(right)
    assert here.name == there.name
    assert_identical(weights_of(here), weights_of(there), "weights")
    ours, theirs = state_of(here), state_of(there)
    assert ours.states.keys() == theirs.states.keys()
    for name in ours.states:
        assert_identical(ours.states[name], theirs.states[name], name)
    before, after = (
        [{name: line[name] for name in line if name != but} for line in metric_lines(run_dir)]
        for run_dir in (left, right)
    )
    assert before == after
    assert completion_lines(left) == completion_lines(right)

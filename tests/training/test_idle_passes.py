"""Processes with fewer slices than others keep up with them, and add nothing to the gradient."""

from __future__ import annotations

import pytest
from accelerate import Accelerator
from support.ranks import call_together
from support.two_ranks_step import gradient

from maxent_grpo.training.scoring.batch import RowRange


@pytest.mark.slow
def test_a_process_without_slices_takes_part_in_every_exchange_of_gradients() -> None:
    answers = call_together("support.two_ranks_step:slices_of_the_first")
    assert len(answers) == 2
    alone, passes = gradient(Accelerator(cpu=True), [RowRange(0, 1), RowRange(1, 2)])
    assert passes == 2
    for there, passes in answers:
        assert passes == 2
        assert there.keys() == alone.keys()
        for name, expected in alone.items():
            assert there[name] == pytest.approx(expected, abs=1e-7), name
    assert max(abs(value) for part in alone.values() for value in part) > 1e-2


def test_without_any_slice_the_gradient_is_zero() -> None:
    nothing, passes = gradient(Accelerator(cpu=True), [])
    assert passes == 0
    assert not any(any(part) for part in nothing.values())
    assert all(nothing.values()), "every parameter has a gradient"

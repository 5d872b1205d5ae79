"""Random groups for property tests, drawn the same in every run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

quick = settings(max_examples=30, deadline=None, derandomize=True, database=None)


class Group(NamedTuple):
    """One prompt's completions, every field [1, G] in double precision."""

    utilities: Tensor
    reference: Tensor
    scores: Tensor


def _row(draw: st.DrawFn, size: int, low: float, high: float) -> Tensor:
    values = draw(st.lists(st.floats(low, high, width=32), min_size=size, max_size=size))
    return torch.tensor([values], dtype=torch.float64)


@st.composite
def groups(draw: st.DrawFn, smallest: int = 2, largest: int = 8) -> Group:
    """A group with real utilities, reference scores and policy scores."""
    size = draw(st.integers(smallest, largest))
    return Group(_row(draw, size, -2, 2), _row(draw, size, -6, 0), _row(draw, size, -6, 0))


temperatures = st.floats(0.05, 5.0)

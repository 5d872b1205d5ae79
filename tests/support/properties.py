"""Random groups for property tests, drawn the same in every run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st
from support.steps import Step
from torch import Tensor

quick = settings(max_examples=30, deadline=None, derandomize=True, database=None)
brief = settings(quick, max_examples=3)
"""For properties that are tried on every method."""


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


REWARDS = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)


@st.composite
def steps(draw: st.DrawFn, smallest_group: int = 1, drifts: tuple[float, ...] = (0.0, 0.3)) -> Step:
    """A made-up step of any shape, with ties, invalid, truncated and empty completions; on-policy or off it."""
    prompts, group = draw(st.integers(1, 4)), draw(st.integers(smallest_group, 5))
    num_tokens, drift = draw(st.integers(1, 5)), draw(st.sampled_from(drifts))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def normal() -> Tensor:
        return torch.randn(prompts * group, num_tokens, dtype=torch.float64, generator=generator)

    def often(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator) < 0.85

    valid = often(prompts, group)
    lengths = torch.randint(0, num_tokens + 1, (prompts * group, 1), generator=generator)
    logp = -normal().abs() - 0.05
    return Step(
        utilities=REWARDS[torch.randint(3, (prompts, group), generator=generator)],
        valid=valid,
        complete=often(prompts, group),
        mask=(torch.arange(num_tokens) < lengths) & valid.view(-1, 1),
        logp=logp,
        old_logp=logp + drift * normal(),
        reference_logp=logp + 0.5 * normal(),
        sampled_logp=logp + drift * normal(),
        entropy=normal().abs(),
        keys=torch.randint(-1, 3, (prompts, group), generator=generator),
        priority=torch.rand(prompts * group, num_tokens, dtype=torch.float64, generator=generator),
    )


temperatures = st.floats(0.05, 5.0)

"""From token losses to one number. Every denominator is step-global and given by the caller.

L = sum over rows of c_i * sum over tokens of m_it * l_it. Because c_i depends only on counts of the whole optimiser step
(over slices, accumulation and processes), a step's loss and gradient are the same however it is cut.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class StepCounts(NamedTuple):
    """Counts of one optimiser step over all slices, loader batches and processes."""

    sequences: float
    """Valid completions, N_seq."""
    tokens: float
    """Trained tokens of valid completions, N_tok."""
    groups: float
    """Prompt groups, N_grp."""
    slices: float = 1.0
    """Slices that the step is cut into."""


def token_coefficients(lengths: Int[Tensor, " sequences"], counts: StepCounts) -> Float[Tensor, " sequences"]:
    """c_i = 1 / N_tok: every token of the step counts alike (DAPO, arXiv 2503.14476)."""
    return torch.full(lengths.shape, 1.0 / max(counts.tokens, 1.0), dtype=torch.float64, device=lengths.device)


def sequence_coefficients(lengths: Int[Tensor, " sequences"], counts: StepCounts) -> Float[Tensor, " sequences"]:
    """c_i = 1 / (N_seq max(T_i, 1)): every completion counts alike (GRPO, arXiv 2402.03300)."""
    return 1.0 / (max(counts.sequences, 1.0) * lengths.clamp(min=1).to(torch.float64))


def constant_coefficients(
    lengths: Int[Tensor, " sequences"], counts: StepCounts, *, max_length: int
) -> Float[Tensor, " sequences"]:
    """c_i = 1 / (N_seq T_max): no length bias (Dr.GRPO, arXiv 2503.20783). T_max is a setting, not a measurement."""
    scale = 1.0 / (max(counts.sequences, 1.0) * max_length)
    return torch.full(lengths.shape, scale, dtype=torch.float64, device=lengths.device)


def micro_batch_coefficients(lengths: Int[Tensor, " sequences"], counts: StepCounts) -> Float[Tensor, " sequences"]:
    """c_i = 1 / (N_tok of this slice * number of slices): a mean of means (BNPO).

    The one reduction that depends on how a step is cut; kept for comparison with trainers that do so.
    """
    scale = 1.0 / (lengths.sum().clamp(min=1).to(torch.float64) * max(counts.slices, 1.0))
    return scale.expand(lengths.shape)


def reduce_tokens(
    values: Float[Tensor, "sequences tokens"],
    mask: Bool[Tensor, "sequences tokens"],
    coefficients: Float[Tensor, " sequences"],
) -> Float[Tensor, ""]:
    """Sum over rows of c_i times the masked sum of the row. Padding may hold anything, NaN included."""
    rows = torch.where(mask, values, torch.zeros_like(values)).sum(dim=-1)
    return (rows * coefficients.to(rows.dtype)).sum()

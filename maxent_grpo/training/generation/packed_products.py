"""Products of a few rows with matrices that are kept in the order of oneDNN's kernels, on a CPU in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

LEAST_NUMBERS = 2**16
"""Matrices of more numbers are packed: a call of oneDNN costs some 10 microseconds more than a plain product."""
ROWS = 16
"""Rows that the order is chosen for; products of 4 to 128 rows are as fast in it."""


def packs(model: PreTrainedModel) -> bool:
    """Whether matrices of this model can be kept in the kernels' order."""
    return model.device.type == "cpu" and model.dtype is torch.float32 and torch.backends.mkldnn.is_available()


def packed_products(modules: Sequence[nn.Linear]) -> Callable[[Tensor], Sequence[Tensor]] | None:
    """x W_i^T + b_i [rows, n_i] of every module for the same x [rows, K], by one product with copies of the weights.

    Later changes of the weights are not seen. None where packing would not pay, or some modules have a bias and others do not.
    """
    weights: list[Tensor] = [each.weight for each in modules]
    biases: list[Tensor | None] = [each.bias for each in modules]
    known = [bias for bias in biases if bias is not None]
    if sum(weight.numel() for weight in weights) <= LEAST_NUMBERS or len(known) not in (0, len(biases)):
        return None
    product: Any = torch.ops.mkldnn._linear_pointwise.default
    with torch.no_grad():
        packed = _reorder(weights[0] if len(weights) == 1 else torch.cat(weights), ROWS)
        bias = torch.cat(known) if known else None
    sizes = [len(weight) for weight in weights]

    def products(rows: Tensor) -> Sequence[Tensor]:
        found = product(rows, packed, bias, "none", [], "")
        return (found,) if len(sizes) == 1 else found.split(sizes, dim=-1)

    return products


def _reorder(weight: Tensor, rows: int) -> Tensor:
    # torch's compiler packs the frozen weights of a program in the same way; a torch without oneDNN has no such operation
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)

"""Collectives, wrapped once: what must be equal on all processes is made so here. With one process each is a no-op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor


def global_sum(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """The sum of each value over processes, in float64."""
    if accelerator.num_processes == 1:
        return [float(value) for value in values]
    local = torch.tensor(list(values), dtype=torch.float64, device=accelerator.device)
    summed = accelerator.reduce(local, reduction="sum")
    assert isinstance(summed, Tensor)
    return summed.tolist()


def gather_all(accelerator: Accelerator, value: Any) -> list[Any]:
    """Each process's picklable value, in rank order, on every process."""
    if accelerator.num_processes == 1:
        return [value]
    return gather_object([value])


def any_rank(accelerator: Accelerator, condition: bool) -> bool:
    """Whether the condition holds on at least one process; the same answer everywhere."""
    return global_sum(accelerator, [float(condition)])[0] > 0

"""Groups of all processes put together in one order, that of one process which had them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor

from maxent_grpo.distributed import gather_all

T = TypeVar("T")
Own = slice | Tensor
"""Index of a process's groups among those of all."""


def gather_groups(accelerator: Accelerator, places: Sequence[int], part: T) -> tuple[T, Own]:
    """What every process says of its groups, in the order of their places, and which of them are this process's.

    Args:
        accelerator: the processes, all of which call this.
        places: of this process's groups; no two groups of all processes have the same.
        part: a tensor whose first axis is this process's groups, or a dataclass or mapping of such values; None stays None.
    """
    if accelerator.num_processes == 1:
        return part, slice(None)
    found: list[tuple[list[int], T]] = gather_all(accelerator, (list(places), part))
    order = order_of([own for own, _ in found])
    before = sum(len(own) for own, _ in found[: accelerator.process_index])
    return in_order([given for _, given in found], order), order.argsort()[before : before + len(places)]


def order_of(places: Sequence[Sequence[int]]) -> Tensor:
    """[P] indices that put the groups of some processes, one process after another, in the order of their places."""
    return torch.tensor([place for own in places for place in own], dtype=torch.long).argsort()


def in_order(parts: Sequence[T], order: Tensor) -> T:
    """Values of groups, one part after another, in an order: of tensors, mappings or dataclasses of those; None stays None."""
    joined: Any
    first: Any = parts[0]
    if first is None:
        joined = None
    elif isinstance(first, Tensor):
        joined = torch.cat([part for part in parts if isinstance(part, Tensor)])[order]
    elif isinstance(first, dict):
        named: list[Any] = list(parts)
        joined = {name: in_order([part[name] for part in named], order) for name in first}
    else:
        assert is_dataclass(first), f"{type(first)} has no groups"
        names = [field.name for field in fields(first)]
        joined = type(first)(**{name: in_order([getattr(part, name) for part in parts], order) for name in names})
    return joined

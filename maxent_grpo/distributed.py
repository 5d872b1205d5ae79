"""Collectives, wrapped once: what must be equal on all processes is made so here. With one process each is a no-op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor

from maxent_grpo.errors import GenerationError, NonFiniteError

T = TypeVar("T")
SamplingError = GenerationError | NonFiniteError
SAMPLING_ERRORS = (GenerationError, NonFiniteError)
"""What a sampler gives up with; a run saves for some of these, which all of its processes do together."""


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


def global_maxima(accelerator: Accelerator, values: Mapping[str, float]) -> dict[str, float]:
    """The largest of each value over processes, which all give the same names."""
    parts: list[dict[str, float]] = gather_all(accelerator, dict(values))
    return {name: max(part[name] for part in parts) for name in values}


def gather_on_main(accelerator: Accelerator, value: T) -> list[T]:
    """Each process's picklable value, in rank order, on the main process; nothing on the others, which need no room for it."""
    if accelerator.num_processes == 1:
        return [value]
    values: list[Any] | None = [None] * accelerator.num_processes if accelerator.is_main_process else None
    torch.distributed.gather_object(value, values, dst=0)
    return values or []


def any_rank(accelerator: Accelerator, condition: bool) -> bool:
    """Whether the condition holds on at least one process; the same answer everywhere."""
    return global_sum(accelerator, [float(condition)])[0] > 0


def together(accelerator: Accelerator, sample: Callable[[], T]) -> T:
    """What ``sample`` returns, unless the sampler of any process gives up: then all raise, and go the same way from there.

    ``sample`` makes the same collectives in every process, also where one gives up.

    Raises:
        GenerationError, NonFiniteError: this process's, or else the first of the others'.
    """
    if accelerator.num_processes == 1:
        return sample()
    made, error = None, None
    try:
        made = sample()
    except SAMPLING_ERRORS as found:
        error = found
    raise_together(accelerator, error)
    return cast(T, made)


def raise_together(accelerator: Accelerator, error: SamplingError | None) -> None:
    """Raise on every process what one of them has met, all of the kind of the first process that has met anything.

    Raises:
        GenerationError, NonFiniteError: there is one.
    """
    kind = GenerationError if isinstance(error, GenerationError) else NonFiniteError
    met = [told for told in gather_all(accelerator, None if error is None else (kind, str(error))) if told is not None]
    if not met:
        return
    first, text = met[0]
    raise error if error is not None and kind is first else first(text)


def raising(accelerator: Accelerator) -> Callable[[SamplingError | None], None] | None:
    """``raise_together`` for several processes; None for one, which raises by itself."""
    return partial(raise_together, accelerator) if accelerator.num_processes > 1 else None


def from_main(accelerator: Accelerator, value: T) -> T:
    """The main process's picklable value, on every process; what the others give is not looked at."""
    if accelerator.num_processes == 1:
        return value
    return cast(T, broadcast_object_list([value], from_process=0)[0])


@contextmanager
def main_first(accelerator: Accelerator) -> Iterator[None]:
    """The block on the main process, and then on the others: they read what it has made, such as a cache."""
    if not accelerator.is_main_process:
        accelerator.wait_for_everyone()
    yield
    if accelerator.is_main_process:  # not after an error: it ends the others as well, and nothing may be believed
        accelerator.wait_for_everyone()

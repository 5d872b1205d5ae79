"""States of which each process has its own: one process saves its state as it is, several the list of theirs.

The same number of processes finds its own again, bit for bit. Another number shares out what was saved.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from maxent_grpo.distributed import gather_on_main
from maxent_grpo.training.checkpoint.run_state import Stateful

PROCESSES = "processes"
"""Key of the list in the state of several processes."""

Share = Callable[[Sequence[dict[str, Any]], int, int], dict[str, Any]]
"""(states of all processes that saved, rank, number of processes now) -> the state that this process continues with."""


@dataclass(frozen=True)
class PerProcess:
    """Registers an object whose state differs between processes."""

    item: Stateful
    share: Share
    accelerator: Accelerator

    @property
    def is_last(self) -> bool:
        """Whether it is loaded behind everything else."""
        return getattr(self.item, "is_last", False)

    def state_dict(self) -> dict[str, Any]:
        """The states of all processes, on the main one; a single one's as it is."""
        own = self.item.state_dict()
        if self.accelerator.num_processes == 1:
            return own
        return {PROCESSES: gather_on_main(self.accelerator, _on_cpu(own))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from this process's own state if as many saved as there are now, else from its share of all."""
        parts = state.get(PROCESSES, [state])
        rank, size = self.accelerator.process_index, self.accelerator.num_processes
        self.item.load_state_dict(parts[rank] if len(parts) == size else self.share(parts, rank, size))


def written_by(accelerator: Accelerator) -> dict[str, int]:
    """What a checkpoint of several processes says of their number; one of a single process says nothing."""
    return {PROCESSES: accelerator.num_processes} if accelerator.num_processes > 1 else {}


def generators_share(seed: int) -> Share:
    """How the generators of ``RngState`` go to other processes: each finds those of its number, or begins new ones of its own."""

    def share(parts: Sequence[dict[str, Any]], rank: int, _size: int) -> dict[str, Any]:
        return parts[rank] if rank < len(parts) else fresh_generators(seed, rank)

    return share


def fresh_generators(seed: int, rank: int) -> dict[str, Any]:
    """States of generators that nothing was drawn from, other ones for each process."""
    number = int.from_bytes(sha256(f"{seed}/{rank}".encode()).digest()[:4])
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return {
        "python": random.Random(number).getstate(),
        "numpy": np.random.RandomState(number).get_state(legacy=False),
        "torch": torch.Generator().manual_seed(number).get_state(),
        "cuda": [torch.Generator(f"cuda:{device}").manual_seed(number).get_state() for device in devices],
    }


def _on_cpu(value: Any) -> Any:
    """A tree whose tensors lie in main memory, as it travels to another process."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_on_cpu(item) for item in value]
    return value

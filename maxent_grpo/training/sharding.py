"""A model whose parameters are cut over the processes of a run, beside the plain model that samples and scores without gradient.

Forward passes with a gradient go through the cut model (FSDP2): all processes make equally many, since each gathers weights and
scatters gradients. Everything else, whose passes differ from process to process, goes through the plain model, which has its weights
only inside ``ShardedWeights.whole``; all processes enter it together. Between such blocks a process holds 1/N of the weights, of the
gradients and of the optimiser, and inside one all weights besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.master_weights import MASTERS


class ShardedWeights:
    """The pair of a plain model and its cut copy; it begins with the plain model whole."""

    def __init__(self, plain: nn.Module, cut: nn.Module) -> None:
        """Pair the parameters by name; those of ``cut`` are DTensors with the values of ``plain``."""
        parts = dict(cut.named_parameters())
        names = [name for name, _ in plain.named_parameters()]
        assert names == list(parts), "both are the same modules"
        self._pairs = [(parameter, parts[name]) for name, parameter in plain.named_parameters()]
        self._depth = 0

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Give the plain model its weights for the time of the block; entered and left by all processes, blocks may nest."""
        if self._depth == 0:
            with torch.no_grad():
                for plain, part in self._pairs:
                    plain.data = whole_tensor(part.detach().to(plain.dtype)).to(plain.device)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._release()

    def adopt(self) -> None:
        """Make the cut model that of the plain one, which has the same whole weights in every process."""
        with torch.no_grad():
            for plain, part in self._pairs:
                part.copy_(part_of(plain.detach(), part))

    def _release(self) -> None:
        """Free the plain model's weights: shape, type and device stay, and what is read by mistake is NaN."""
        for plain, _ in self._pairs:
            plain.data = torch.full((), math.nan, dtype=plain.dtype, device=plain.device).expand(plain.shape)


def whole_tensor(value: Tensor) -> Tensor:
    """All of a tensor that processes have parts of; asked for by all of them."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor, cut as ``like`` is and where that is; without any exchange."""
    if not isinstance(like, DTensor):
        return value.to(like)
    mesh, [placement] = like.device_mesh, like.placements
    assert isinstance(placement, Shard), "FSDP2 cuts along one axis"
    chunks = value.chunk(mesh.size(), placement.dim)
    mine = mesh.get_local_rank()
    part = cast(DTensor, torch.empty_like(like))
    if mine < len(chunks):  # small tensors do not go round
        part.to_local().copy_(chunks[mine])
    return part


class ShardedAdamW(torch.optim.AdamW):
    """AdamW over parameters that are cut over processes, with a state that is written and read whole, as one process has it.

    Weights that are computed with in fewer than 32 bits are trained as float32 parts, whose rounding the computation gathers: these are
    the float32 copies of ``MasterAdamW``, and stand in the state as such.
    """

    rounds = False
    """Whether weights are computed with in fewer bits than they are trained in."""

    def state_dict(self) -> dict[str, Any]:
        """AdamW's state over whole parameters, on the main process; the others, which take part, get none."""
        own = super().state_dict()
        is_main = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        state = {index: _gathered(entry, keep=is_main) for index, entry in own["state"].items()}
        masters = [_gathered({MASTERS: part.detach()}, keep=is_main) for part in self._parts()] if self.rounds else []
        if not is_main:
            return own | {"state": {}}
        whole = own | {"state": state}
        return whole | {MASTERS: [entry[MASTERS] for entry in masters]} if self.rounds else whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Become what the whole state describes, the trained weights included where the state has copies of them.

        Raises:
            CheckpointError: it was saved by an optimiser of another type of weights.
        """
        parts, masters = self._parts(), state_dict.get(MASTERS, [])
        if [tensor.shape for tensor in masters] != ([part.shape for part in parts] if self.rounds else []):
            raise CheckpointError(
                f"the saved optimiser has float32 copies of {len(masters)} weights and this run trains "
                f"{len(parts) if self.rounds else 0} of them: it was saved with another model.dtype; start a new run from its weights"
            )
        state = {
            index: {
                name: part_of(value, parts[index])
                if torch.is_tensor(value) and value.shape == parts[index].shape
                else value
                for name, value in entry.items()
            }
            for index, entry in state_dict["state"].items()
        }
        super().load_state_dict({"state": state, "param_groups": state_dict["param_groups"]})
        with torch.no_grad():
            for tensor, part in zip(masters, parts if self.rounds else [], strict=True):
                part.copy_(part_of(tensor, part))

    def _parts(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def _gathered(entry: dict[str, Any], *, keep: bool) -> dict[str, Any]:
    """An entry of the state with whole tensors in main memory, one after the other; nothing is kept unless asked for."""
    whole: dict[str, Any] = {}
    for name, value in entry.items():
        gathered = whole_tensor(value) if torch.is_tensor(value) else value
        if keep:
            whole[name] = gathered.cpu() if isinstance(value, DTensor) else gathered
    return whole

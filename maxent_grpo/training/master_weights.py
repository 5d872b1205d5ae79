"""AdamW of weights with less than 32 bits: what is trained is a copy in float32, which the model's weights are rounded from.

    m_0 = w_0,    m_{t+1} = AdamW(m_t, g_t),    w_{t+1} = round(m_{t+1})

as in arXiv 1710.03740, section 3.1. A bfloat16 number has 8 bits of precision: a step of less than 1/512 of a weight would be
rounded away, and reinforcement learning takes smaller ones. The copy starts at the weights as they were loaded, also where the
folder had more bits: the policy, its reference and what samples then begin as one model. Gradients are added up over slices, clipped
and applied in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from maxent_grpo.errors import CheckpointError

MASTERS = "master_weights"
"""Name of the copies in the optimiser's state."""


def needs_master(parameter: Tensor) -> bool:
    """Whether steps of training are too small for the type of a parameter."""
    return parameter.dtype.itemsize < torch.float32.itemsize


class MasterAdamW(torch.optim.AdamW):
    """AdamW over float32 copies of the parameters that have fewer bits; the others are trained themselves."""

    def __init__(self, parameters: Iterable[nn.Parameter], **settings: Any) -> None:
        """Copy the parameters that need it; ``settings`` are those of ``torch.optim.AdamW``."""
        self.live = list(parameters)
        trained = [
            nn.Parameter(parameter.detach().float()) if needs_master(parameter) else parameter
            for parameter in self.live
        ]
        super().__init__(trained, **settings)
        self._pairs = [pair for pair in zip(self.live, trained, strict=True) if pair[0] is not pair[1]]
        self.register_step_post_hook(lambda *_: self._round())

    def collect(self) -> None:
        """Add the model's gradients to those of the copies, in float32, and clear them; after every backward pass."""
        for live, master in self._pairs:
            if live.grad is None:
                continue
            if master.grad is None:
                master.grad = live.grad.float()
            else:
                master.grad += live.grad
            live.grad = None

    def state_dict(self) -> dict[str, Any]:
        """AdamW's state and the copies, in the order of the parameters."""
        return super().state_dict() | {MASTERS: [master.detach() for _, master in self._pairs]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Become what the state describes, the model's weights included.

        Raises:
            CheckpointError: it was saved by an optimiser without these copies.
        """
        saved = state_dict.get(MASTERS, [])
        if [tensor.shape for tensor in saved] != [master.shape for _, master in self._pairs]:
            raise CheckpointError(
                f"the saved optimiser has float32 copies of {len(saved)} weights and this run trains {len(self._pairs)}: it was "
                "saved with another model.dtype, or by a version without them; start a new run from its weights"
            )
        super().load_state_dict({name: value for name, value in state_dict.items() if name != MASTERS})
        with torch.no_grad():
            for tensor, (_, master) in zip(saved, self._pairs, strict=True):
                master.copy_(tensor)
        self._round()

    @torch.no_grad()
    def _round(self) -> None:
        """The model's weights become the numbers of their type that are nearest to the copies."""
        for live, master in self._pairs:
            live.copy_(master)


def live_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The model's own parameters that an optimiser trains, in the order of ``trained_parameters``."""
    return list(optimizer.live) if isinstance(optimizer, MasterAdamW) else trained_parameters(optimizer)


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters of an optimiser, group by group: copies where it keeps some."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]

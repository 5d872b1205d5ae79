"""Whole tensors of what processes share: a model and its optimiser as one process would have them, to be saved and to be loaded.

Processes that each hold all of a model, as in data-parallel training, have nothing to gather. Every function here is called by all
processes of a run, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from maxent_grpo.models.adapter import adapter_parameters, has_adapter, set_adapter_weights
from maxent_grpo.models.output_head import unwrapped


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """What is trained, whole: every parameter and saved buffer by name, or the adapter's matrices by their names in files.

    Only the main process needs them: others may get nothing.
    """
    inner = unwrapped(model)
    own = adapter_parameters(inner)
    return {name: value.detach() for name, value in own.items()} if own else dict(inner.state_dict())


def load_full_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy tensors that ``full_weights`` gave, or some of them, into the model, in place; shapes and types were compared before."""
    inner = unwrapped(model)
    if has_adapter(inner):
        set_adapter_weights(inner, weights, cast=False)
        return
    state: dict[str, Tensor] = inner.state_dict()
    with torch.no_grad():
        for name, tensor in weights.items():
            state[name].copy_(tensor)


def full_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimiser's state over whole parameters; only the main process needs it."""
    return optimizer.state_dict()


def load_full_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Become what ``full_optimizer_state`` gave."""
    optimizer.load_state_dict(state)

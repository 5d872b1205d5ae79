"""How a model is called: in which mode, compiled or not, and with which arguments, as not every architecture has them all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

OPTIONAL = ("logits_to_keep", "position_ids")
"""Left out where a model has no such argument: it then gives all logits, or takes positions from the mask."""


def accepted(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """``arguments`` without those of ``OPTIONAL`` that the model does not know."""
    inner = getattr(model, "module", model)
    # a forward of the instance's own (wrapped, patched) says what it takes, otherwise the class does, once
    known = _parameters(inner.forward) if "forward" in vars(inner) else _parameters_of_class(type(inner))
    return {name: value for name, value in arguments.items() if name in known or name not in OPTIONAL}


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Dropout and gradient checkpointing off inside the block; every submodule has its own mode back after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run a model that is compiled, or whose decoder is, as it is written inside the block."""
    if all(getattr(module, "_compiled_call_impl", None) is None for module in model.modules()):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@cache
def _parameters_of_class(kind: type[nn.Module]) -> frozenset[str]:
    return _parameters(kind.forward)


def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)

"""The model and its optimiser as they are trained: whole in each process, or cut over the processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedModel

from maxent_grpo.config.optimization import OptimizationConfig
from maxent_grpo.config.parallel import Strategy
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.adapter import shared_copy
from maxent_grpo.training.accelerator import wrapped
from maxent_grpo.training.master_weights import needs_master
from maxent_grpo.training.optim import adamw, optimizer_handles
from maxent_grpo.training.sharding import ShardedAdamW, ShardedWeights
from maxent_grpo.training.strategy import CHOICE
from maxent_grpo.training.types.runtime import OptimizationSchedule, OptimizerHandles


@dataclass(frozen=True)
class Prepared:
    """The policy as it is trained."""

    handles: OptimizerHandles
    wrapped: nn.Module | None
    """What forward passes with a gradient go through; None is the model itself."""
    sharded: ShardedWeights | None
    """The weights where they are cut over the processes; None where each has all."""


def prepare_policy(
    config: OptimizationConfig, schedule: OptimizationSchedule, model: PreTrainedModel, accelerator: Accelerator
) -> Prepared:
    """Optimiser, schedule and the model as it is trained.

    Raises:
        ConfigError: the weights cannot be cut over processes.
    """
    if accelerator.num_processes == 1 or config.parallel.strategy is not Strategy.fsdp:
        base = adamw(config, model)
        handles = optimizer_handles(config, schedule, base, accelerator.prepare(base))
        exchanging = wrapped(accelerator, model)
        return Prepared(handles, None if exchanging is model else exchanging, None)
    _require_units(model)
    rounds = any(map(needs_master, model.parameters()))
    cut = shared_copy(model)
    base = adamw(config, cut, ShardedAdamW)
    prepared, optimizer = accelerator.prepare(cut, base)
    if rounds:
        prepared.float()  # each process its own parts, which are what is trained
    sharded = cast(ShardedAdamW, base)
    sharded.rounds = rounds
    return Prepared(optimizer_handles(config, schedule, base, optimizer), prepared, ShardedWeights(model, prepared))


def _require_units(model: PreTrainedModel) -> None:
    """Refuse a model that FSDP would take in one piece, or whose weights it would bring to one type.

    Raises:
        ConfigError: it is such a model.
    """
    name = type(model).__name__
    if not getattr(model, "_no_split_modules", None):
        raise ConfigError(
            f"{CHOICE}: {name} names no layers that its weights could be gathered by; use optimization.parallel.strategy=ddp"
        )
    types = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()})
    if len(types) > 1:
        raise ConfigError(
            f"{CHOICE}: {name} has weights of the types {', '.join(types)}, which would be computed with in one of them; use "
            "optimization.parallel.strategy=ddp"
        )

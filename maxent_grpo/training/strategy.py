"""How a run is spread over its processes, as accelerate is told.

One process holds everything whatever the settings say. Of several, ``ddp`` keeps all weights in each of them; ``fsdp`` cuts weights,
gradients and optimiser over them, see ``sharding``.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate import (
    Accelerator,
    DistributedDataParallelKwargs,
    FullyShardedDataParallelPlugin,
    InitProcessGroupKwargs,
)
from accelerate.state import PartialState
from accelerate.utils import DeepSpeedPlugin, DistributedType, KwargsHandler
from torch.distributed.fsdp import MixedPrecisionPolicy

from maxent_grpo.config.model import Dtype
from maxent_grpo.config.parallel import Strategy
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError

WEIGHTS_TOO = 3
"""Stage of ZeRO from which on the weights are cut."""
LAUNCHED = {
    "ACCELERATE_USE_FSDP": Strategy.fsdp,
    "ACCELERATE_USE_DEEPSPEED": Strategy.deepspeed,
    "ACCELERATE_USE_MEGATRON_LM": None,
}
"""What `accelerate launch` tells its processes, and the strategy that it means."""
CHOICE = "optimization.parallel.strategy=fsdp"


def fsdp_plugin(config: RootConfig) -> FullyShardedDataParallelPlugin:
    """FSDP2 with a unit for each layer of the model, computing in the type of ``model.dtype`` and adding gradients up in 32 bits."""
    settings = config.optimization.parallel.fsdp
    rounds = config.model.dtype is Dtype.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if rounds else None
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        reshard_after_forward=settings.reshard_after_forward,
        cpu_offload=settings.cpu_offload,
        mixed_precision_policy=policy,
        # every process has read the weights already; gradient checkpointing is the model's own
        cpu_ram_efficient_loading=False,
        activation_checkpointing=False,
    )


def deepspeed_plugin(config: RootConfig) -> DeepSpeedPlugin:
    """ZeRO with the settings of ``deepspeed_settings``; does not need the package deepspeed."""
    return DeepSpeedPlugin(hf_ds_config=deepspeed_settings(config))


def deepspeed_settings(config: RootConfig) -> dict[str, Any]:
    """DeepSpeed's own configuration of a run.

    Accumulation and the size of batches are this program's: DeepSpeed is told of one row and one pass. It averages gradients over
    processes as the other strategies do, which ``training.optim.shared_loss`` undoes, and clips them itself.
    """
    settings = config.optimization.parallel.deepspeed
    zero: dict[str, Any] = {
        "stage": settings.zero_stage,
        "overlap_comm": settings.overlap_comm,
        "offload_optimizer": {"device": "cpu" if settings.offload_optimizer else "none"},
    }
    if settings.zero_stage == WEIGHTS_TOO:
        zero["offload_param"] = {"device": "cpu" if settings.offload_parameters else "none"}
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optimization.max_grad_norm,
        "zero_optimization": zero,
        "bf16": {"enabled": config.model.dtype is Dtype.bfloat16},
    }


def accelerator_arguments(config: RootConfig, num_processes: int) -> dict[str, Any]:
    """What ``Accelerator`` is given for the strategy of a run of so many processes.

    Raises:
        ConfigError: `accelerate launch` was told of another strategy.
    """
    _require_own_choice(config, num_processes)
    # buffers are constants, and exchanging them would make every forward pass one that all processes must make
    handlers: list[KwargsHandler] = [DistributedDataParallelKwargs(broadcast_buffers=False)]
    if num_processes == 1 or config.optimization.parallel.strategy is not Strategy.fsdp:
        return {"kwargs_handlers": handlers}
    if config.optimization.parallel.fsdp.cpu_offload:
        # gradients are in main memory when their norm is summed over processes
        handlers.append(InitProcessGroupKwargs(backend="cuda:nccl,cpu:gloo"))
    return {"kwargs_handlers": handlers, "fsdp_plugin": fsdp_plugin(config)}


def _require_own_choice(config: RootConfig, num_processes: int) -> None:
    """Refuse what a launcher's own settings would change without a word.

    Raises:
        ConfigError: they ask for another strategy.
    """
    chosen = config.optimization.parallel.strategy
    for variable, meant in LAUNCHED.items():
        if num_processes > 1 and os.environ.get(variable, "false").lower() == "true" and meant is not chosen:
            instead = f"use optimization.parallel.strategy={meant}, or " if meant is not None else ""
            raise ConfigError(
                f"optimization.parallel.strategy={chosen}, but the processes were started with {variable}=true, as by a configuration of "
                f"`accelerate launch`, which would spread the run in another way: {instead}start them without it, as torchrun does"
            )


def settle_strategy(config: RootConfig, accelerator: Accelerator) -> None:
    """Make sure that processes do what was chosen: accelerate passes over FSDP on CPUs without a word.

    Raises:
        ConfigError: weights cannot be cut over these processes.
    """
    if config.optimization.parallel.strategy is Strategy.deepspeed:
        raise ConfigError(
            "optimization.parallel.strategy=deepspeed: the settings are composed for accelerate, but a step, a checkpoint and a resume "
            "under ZeRO have not been seen right, and nothing here trains that way; use optimization.parallel.strategy=fsdp, which "
            "cuts the same over the processes"
        )
    if config.optimization.parallel.strategy is not Strategy.fsdp or accelerator.num_processes == 1:
        return
    if accelerator.device.type == "cpu":
        if torch.cuda.is_available():
            raise ConfigError(
                f"{CHOICE} with run.device=cpu: weights would be cut over the GPUs of this machine; use run.device=auto"
            )
        if config.optimization.parallel.fsdp.cpu_offload:
            raise ConfigError(
                "optimization.parallel.fsdp.cpu_offload=true: this run computes on CPUs, and its weights are in main memory already; "
                "write optimization.parallel.fsdp.cpu_offload=false"
            )
        # what it does itself for every kind of device but this
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = fsdp_plugin(config)
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    assert accelerator.is_fsdp2, "processes that are asked to cut the weights do so"


def strategy_note(config: RootConfig, accelerator: Accelerator) -> str | None:
    """What is said of a strategy that one process has no use for."""
    strategy = config.optimization.parallel.strategy
    if strategy is Strategy.ddp or accelerator.num_processes > 1:
        return None
    return f"optimization.parallel.strategy={strategy}: this is one process, which holds all weights, gradients and the optimiser"

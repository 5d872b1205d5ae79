"""The device and the processes of a run, as accelerate sees them."""

from __future__ import annotations

import random
import warnings
from typing import cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import DeviceChoice
from maxent_grpo.errors import ConfigError
from maxent_grpo.launched import place
from maxent_grpo.training.strategy import accelerator_arguments, settle_strategy


def make_accelerator(config: RootConfig) -> Accelerator:
    """The device and processes of the run; seeds the generators of Python, numpy and torch, and sets torch's threads.

    The program itself draws from addressed streams; reward functions and libraries draw from these.

    Raises:
        ConfigError: `run.device` asks for a device that is not there.
    """
    accelerator = joined_accelerator(config)
    require_device(config, accelerator)
    return accelerator


def joined_accelerator(config: RootConfig) -> Accelerator:
    """As ``make_accelerator``, without a look at the device: processes that have not met cannot tell each other of it.

    Raises:
        ConfigError: more processes were started here than there are GPUs.
    """
    disable_progress_bar()  # transformers' bars for writing a file would break the progress line
    if config.run.num_threads is not None:
        torch.set_num_threads(config.run.num_threads)
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)
    on_cpu = config.run.device is DeviceChoice.cpu
    here = place()
    if here.size > 1 and not on_cpu and torch.cuda.is_available() and here.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"run.device={config.run.device}: process {here.local_rank} of this machine has no GPU, of which it has "
            f"{torch.cuda.device_count()}; start as many processes as there are GPUs, or use run.device=cpu"
        )
    return Accelerator(cpu=on_cpu, **accelerator_arguments(config, here.size))


def wrapped(accelerator: Accelerator, model: PreTrainedModel) -> nn.Module:
    """The model as it is trained: of several processes, one that exchanges gradients in each backward pass."""
    with warnings.catch_warnings():
        # the name that torch 2.13 prefers is not known to earlier ones
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return cast(nn.Module, accelerator.prepare_model(model))


def require_device(config: RootConfig, accelerator: Accelerator) -> None:
    """Refuse to compute elsewhere, or spread in another way, than was asked for.

    Raises:
        ConfigError: `run.device` asks for a device that is not there, or `optimization.parallel` for what cannot be done on it.
    """
    settle_strategy(config, accelerator)
    if config.run.device is DeviceChoice.cuda and accelerator.device.type != "cuda":
        raise ConfigError(
            f"run.device=cuda: torch finds no CUDA device here and would compute on {accelerator.device}; use run.device=auto "
            "to take what there is, or install a torch that sees the GPU"
        )

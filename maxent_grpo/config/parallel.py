"""`optimization.parallel`: how weights, gradients and optimiser are spread over the processes of a run."""

from dataclasses import dataclass, field
from enum import StrEnum


class Strategy(StrEnum):
    """What each process holds."""

    ddp = "ddp"
    fsdp = "fsdp"
    deepspeed = "deepspeed"


@dataclass(slots=True)
class FsdpConfig:
    """FSDP2 of torch, each layer of the model a unit."""

    reshard_after_forward: bool = True
    """Give a layer's weights back after its forward pass and gather them again for its backward pass; false keeps them in between, which takes the memory of the whole weights and saves an exchange in each slice."""
    cpu_offload: bool = False
    """Keep each process's part of weights, gradients and optimiser in main memory, where the optimiser then steps; needs GPUs that compute."""


@dataclass(slots=True)
class DeepSpeedConfig:
    """ZeRO of DeepSpeed."""

    zero_stage: int = 2
    """What is cut over the processes: 2 is the optimiser and the gradients, 3 the weights as well [stage]."""
    offload_optimizer: bool = False
    """Keep the optimiser's state in main memory and step there."""
    offload_parameters: bool = False
    """Keep each process's part of the weights in main memory; stage 3 only."""
    overlap_comm: bool = True
    """Exchange gradients while the backward pass goes on, for some more memory."""


@dataclass(slots=True)
class ParallelConfig:
    """Several processes, one for each GPU, are started by torchrun or accelerate launch; one process holds everything whatever stands here."""

    strategy: Strategy = Strategy.ddp
    """`ddp` gives each process all weights, gradients and the whole optimiser; `fsdp` cuts all three over the processes with torch's FSDP2; `deepspeed` with ZeRO, which needs the package deepspeed and GPUs."""
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    deepspeed: DeepSpeedConfig = field(default_factory=DeepSpeedConfig)

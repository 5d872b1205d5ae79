"""Gate 3, second half: settings that cannot stand with weights that are cut over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.config.model import Dtype
from maxent_grpo.config.parallel import DeepSpeedConfig, FsdpConfig, Strategy
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import DeviceChoice

STRATEGY = "optimization.parallel.strategy"
WHOLE = f"use {STRATEGY}=ddp"


def _cut(config: RootConfig) -> Iterator[str]:
    """What needs the weights of every layer at once, with a gradient, or runs a slice in several passes."""
    strategy = config.optimization.parallel.strategy
    if strategy is Strategy.ddp:
        return
    chosen = f"{STRATEGY}={strategy}"
    if config.model.lora.enabled:
        yield (
            f"model.lora.enabled=true with {chosen}: an adapter's gradients and optimiser are small, and its base would be cut in another "
            f"type than it has; {WHOLE}"
        )
    if config.model.compile:
        yield (
            f"model.compile=true with {chosen}: layers are compiled with their weights, which come and go; write model.compile=false, or "
            f"{WHOLE}"
        )
    if isinstance(config.controller, MetaControllerConfig):
        yield (
            f"controller=meta with {chosen}: meta-gradients differentiate the whole step in every process, and none holds all of it; use "
            f"another controller, or {WHOLE}"
        )
    size = config.scoring.batching.logprob_chunk_size
    if size > 0:
        yield (
            f"scoring.batching.logprob_chunk_size={size} with {chosen}: all processes make the same forward passes, one for each slice; "
            f"write scoring.batching.logprob_chunk_size=0, and bound a slice with scoring.batching.max_tokens"
        )


def _fsdp(config: RootConfig) -> Iterator[str]:
    settings, strategy = config.optimization.parallel.fsdp, config.optimization.parallel.strategy
    if strategy is not Strategy.fsdp and settings != FsdpConfig():
        yield _unused("fsdp", settings.__dataclass_fields__, settings, FsdpConfig(), strategy)
    elif settings.cpu_offload and config.run.device is DeviceChoice.cpu:
        yield (
            "optimization.parallel.fsdp.cpu_offload=true with run.device=cpu: weights are in main memory already; write "
            "optimization.parallel.fsdp.cpu_offload=false"
        )


def _deepspeed(config: RootConfig) -> Iterator[str]:
    settings, strategy = config.optimization.parallel.deepspeed, config.optimization.parallel.strategy
    if strategy is not Strategy.deepspeed:
        if settings != DeepSpeedConfig():
            yield _unused("deepspeed", settings.__dataclass_fields__, settings, DeepSpeedConfig(), strategy)
        return
    if settings.offload_parameters and settings.zero_stage == 2:
        yield (
            "optimization.parallel.deepspeed.offload_parameters=true with optimization.parallel.deepspeed.zero_stage=2, which leaves all "
            "weights in every process; use optimization.parallel.deepspeed.zero_stage=3"
        )
    if config.model.dtype is Dtype.float64:
        yield f"model.dtype=float64 with {STRATEGY}=deepspeed, which trains in 32 or 16 bits: write model.dtype=float32"
    if config.run.device is DeviceChoice.cpu:
        yield f"run.device=cpu with {STRATEGY}=deepspeed, which accelerate starts on GPUs only: use run.device=auto or {STRATEGY}=fsdp"


def _unused(name: str, fields: dict[str, object], settings: object, default: object, strategy: Strategy) -> str:
    """One sentence for all settings of a strategy that was not chosen."""
    changed = [field for field in fields if getattr(settings, field) != getattr(default, field)]
    shown = ", ".join(f"optimization.parallel.{name}.{field}={_word(getattr(settings, field))}" for field in changed)
    return f"{shown} would not be looked at, since {STRATEGY}={strategy}: use {STRATEGY}={name}, or leave it out"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


PARALLEL_RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (_cut, _fsdp, _deepspeed)
"""Every rule about how a run is spread over processes."""

"""What samples for a run: the trainer's own model, or a vLLM that lives as long as the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from maxent_grpo.config.generation import VllmGenerationConfig, VllmMode, WeightTransfer
from maxent_grpo.config.installed import find_module
from maxent_grpo.config.resolve import engine_share, longest_sequence
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.evaluation.build import MakeGenerator
from maxent_grpo.training.generation.vllm.server_process import ServerOptions
from maxent_grpo.training.generation.vllm.team import Team
from maxent_grpo.training.samplers import local_generator, vllm_generator
from maxent_grpo.training.types.logging import LoggingHandles
from maxent_grpo.training.types.runtime import GenerationSettings, RuntimeHandles

SPREAD = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp")
"""Arguments of a server that make it take more GPUs than one."""


@contextmanager
def sampling_engine(
    config: RootConfig, runtime: RuntimeHandles, settings: GenerationSettings, handles: LoggingHandles
) -> Iterator[MakeGenerator]:
    """A maker of samplers for the time of the block; a vLLM that was started for it is stopped at the end, however that comes.

    Raises:
        ConfigError: vLLM cannot be used so by this process.
        GenerationError: no vLLM answers, or it did not start.
    """
    if not isinstance(config.generation, VllmGenerationConfig):
        yield partial(local_generator, runtime)
        return
    _require_possible(config, runtime)
    # asks the engine's own library, which other samplers do without
    from maxent_grpo.training.generation.vllm.build import EngineChoice, start_engine

    transfer, why = weight_transfer(config, runtime.device, runtime.accelerator.num_processes)
    if why:
        handles.write_note(f"vLLM: weights go by generation.weight_transfer={transfer}, since {why}")
    weights = start_engine(
        settings,
        replace(server_options(config, runtime), transfer=transfer),
        runtime.model,
        runtime.tokenizer,
        handles.run_dir,
        handles.write_note,
        EngineChoice(
            weights_dir=config.generation.weights_dir,
            transfer=transfer,
            max_in_flight=config.generation.max_in_flight,
            sleeps=config.generation.engine.sleep,
        ),
        Team(runtime.accelerator, per_node=config.generation.vllm.url is None),
    )
    try:
        yield partial(vllm_generator, weights, runtime)
    finally:
        weights.close()


def _require_possible(config: RootConfig, runtime: RuntimeHandles) -> None:
    """What only the process knows.

    Raises:
        ConfigError: vLLM cannot be used so by this process.
    """
    generation = config.generation
    assert isinstance(generation, VllmGenerationConfig)
    processes = runtime.accelerator.num_processes
    if processes > 1 and generation.vllm_mode is VllmMode.colocate:
        raise ConfigError(
            f"generation.vllm_mode=colocate: this run has {processes} processes, each of which would hold an engine and its memory "
            "beside its part of the training; write generation.vllm_mode=server, whose servers all of them ask, or train in one "
            "process"
        )
    if processes > 1 and generation.weight_transfer is WeightTransfer.ipc:
        raise ConfigError(
            f"generation.weight_transfer=ipc: this run has {processes} processes on as many GPUs, and the server shares one GPU "
            "with one of them; write generation.weight_transfer=nccl with servers on GPUs of their own, or reload"
        )
    if runtime.device.type != "cuda" and generation.weight_transfer in (WeightTransfer.nccl, WeightTransfer.ipc):
        raise ConfigError(
            f"generation.weight_transfer={generation.weight_transfer}: it goes from GPU to GPU, and this run computes on "
            f"{runtime.device}; write generation.weight_transfer=reload"
        )
    if (
        generation.weight_transfer is WeightTransfer.nccl
        and processes == 1
        and runtime.device.type == "cuda"
        and (runtime.device.index or 0) in generation.engine.devices
    ):
        raise ConfigError(
            f"generation.engine.devices={generation.engine.devices} with generation.weight_transfer=nccl: the run trains on GPU "
            f"{runtime.device.index or 0}, and NCCL goes between two; name others, or write generation.weight_transfer=ipc and "
            "generation.engine.devices=[]"
        )
    if generation.engine.sleep and runtime.device.type == "cpu":
        raise ConfigError(
            "generation.engine.sleep=true: sleeping gives back the memory of a GPU, and this run computes on a CPU; write "
            "generation.engine.sleep=false"
        )


def weight_transfer(config: RootConfig, device: torch.device, processes: int) -> tuple[WeightTransfer, str]:
    """How weights go to the engine, and where that is left open (`auto`) why; empty where it was said."""
    generation = config.generation
    assert isinstance(generation, VllmGenerationConfig)
    if generation.weight_transfer is not WeightTransfer.auto:
        return generation.weight_transfer, ""
    if obstacle := _needs_reload(generation, device):
        return WeightTransfer.reload, obstacle
    if generation.vllm.url is not None or generation.engine.devices:
        return WeightTransfer.nccl, "the servers have GPUs of their own"
    if processes == 1 and generation.engine.tensor_parallel_size == 1:
        return WeightTransfer.ipc, "the server shares the trainer's GPU"
    return WeightTransfer.reload, "the server shares a GPU with one of several trainers, or takes several GPUs"


def _needs_reload(generation: VllmGenerationConfig, device: torch.device) -> str:
    """What stands against weights that go from GPU to GPU; empty if nothing."""
    if device.type != "cuda":
        return f"this run computes on {device}"
    if generation.vllm_mode is VllmMode.colocate:
        return "the engine is in this process"
    if find_module("vllm") is None:
        return "vLLM is not installed beside the trainer"
    if any(argument.split("=")[0] in SPREAD for argument in generation.engine.extra_args):
        return "generation.engine.extra_args spreads the server over several GPUs"
    if (device.index or 0) in generation.engine.devices:
        return "the server is on the trainer's GPU, named by generation.engine.devices"
    if generation.async_steps or generation.vllm.sync_interval > 1:
        return "a server may need weights again that the trainer no longer has"
    return ""


def server_options(config: RootConfig, runtime: RuntimeHandles) -> ServerOptions:
    """How an engine is started for this model on this device."""
    assert isinstance(config.generation, VllmGenerationConfig)
    engine = config.generation.engine
    on_cpu = runtime.device.type == "cpu"
    return ServerOptions(
        dtype=str(next(runtime.model.parameters()).dtype).removeprefix("torch."),
        max_model_len=engine.max_model_len or longest_sequence(config),
        seed=config.seed,
        startup_seconds=engine.startup_seconds,
        kv_cache_gib=engine.kv_cache_gib if on_cpu else None,
        gpu_memory_utilization=None if on_cpu else engine_share(config.generation),
        tensor_parallel_size=engine.tensor_parallel_size,
        enforce_eager=engine.enforce_eager,
        extra_args=tuple(engine.extra_args),
        devices=tuple(engine.devices),
        threads=torch.get_num_threads() if on_cpu else None,
    )

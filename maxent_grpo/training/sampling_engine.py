"""What samples for a run: the trainer's own model, or a vLLM that lives as long as the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from maxent_grpo.config.generation import VllmGenerationConfig
from maxent_grpo.config.resolve import longest_sequence
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.training.evaluation.build import MakeGenerator
from maxent_grpo.training.generation.vllm.server_process import ServerOptions
from maxent_grpo.training.samplers import local_generator, vllm_generator
from maxent_grpo.training.types.logging import LoggingHandles
from maxent_grpo.training.types.runtime import GenerationSettings, RuntimeHandles


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
    from maxent_grpo.training.generation.vllm.build import start_engine

    weights = start_engine(
        settings,
        server_options(config, runtime),
        runtime.model,
        runtime.tokenizer,
        handles.run_dir,
        handles.write_note,
        weights_dir=config.generation.weights_dir,
        max_in_flight=config.generation.max_in_flight,
        sleeps=config.generation.engine.sleep,
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
    assert isinstance(config.generation, VllmGenerationConfig)
    processes = runtime.accelerator.num_processes
    if processes > 1:
        raise ConfigError(
            f"generation=vllm: this run has {processes} processes, each of which would bring its weights to the servers on its "
            "own; train in one process, with as many servers as there are GPUs for them, or use generation=local"
        )
    if config.generation.engine.sleep and runtime.device.type == "cpu":
        raise ConfigError(
            "generation.engine.sleep=true: sleeping gives back the memory of a GPU, and this run computes on a CPU; write "
            "generation.engine.sleep=false"
        )


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
        gpu_memory_utilization=engine.gpu_memory_utilization,
        tensor_parallel_size=engine.tensor_parallel_size,
        enforce_eager=engine.enforce_eager,
        extra_args=tuple(engine.extra_args),
        threads=torch.get_num_threads() if on_cpu else None,
    )

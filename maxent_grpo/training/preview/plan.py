"""A run on GPUs that are not here: what each would hold and what a step would take, from the settings and data sheets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from maxent_grpo.config.generation import LocalGenerationConfig, VllmGenerationConfig, VllmMode, WeightTransfer
from maxent_grpo.config.resolve import BatchPlan, batch_plan, engine_share, reference_source
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.compute_shape import compute_shape
from maxent_grpo.telemetry.summary import Row
from maxent_grpo.training.exchange import traffic_of
from maxent_grpo.training.hardware import GPUS, Assumptions, Gpu, costs_of, links_of
from maxent_grpo.training.memory import MemoryEstimate, Part, Phase
from maxent_grpo.training.memory_engine import EngineRoom, engine_room
from maxent_grpo.training.memory_sizes import Held, ModelShape
from maxent_grpo.training.old_scores import needs_old_scores
from maxent_grpo.training.preview.run import workload
from maxent_grpo.training.preview.sight import Sight, look
from maxent_grpo.training.preview.sizes import (
    Workload,
    divided_among,
    memory_estimate,
    model_shape,
    parallel_kind,
    parameter_counts,
    slice_passes,
)
from maxent_grpo.training.step_time import Costs, Layout, Links, Load, StepTime, Traffic, spread_over, step_time
from maxent_grpo.training.types.choices import ReferenceSource
from maxent_grpo.training.types.flops import ComputeShape


@dataclass(frozen=True, slots=True)
class Machines:
    """The GPUs of a plan."""

    gpu: str = "h100"
    gpus: int = 1
    per_node: int = 8
    servers: int = 1
    """vLLM servers that sample, each on generation.engine.tensor_parallel_size of the GPUs; the others train."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths that the time of a step is computed for; 0 is what the settings say [tokens]."""

    prompt: int = 0
    """0: of the prompts as far as they could be read, else their limit."""
    completion: int = 0
    """0: every completion at its limit."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What the time of a step is computed from."""

    costs: Costs
    sampler: Costs
    load: Load
    layout: Layout
    traffic: Traffic
    links: Links
    updated: float

    def step(self) -> StepTime:
        """Seconds of an optimiser step."""
        return step_time(
            self.costs, self.load, self.layout, self.traffic, self.links, sampler=self.sampler, updated=self.updated
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the settings on the GPUs of a plan."""

    gpu: Gpu
    machines: Machines
    kind: str
    """How trainers hold the model: one of ``memory_sharding.KINDS``."""
    layout: Layout
    tensor_parallel: int
    batch: BatchPlan
    num_rows: int | None
    memory: MemoryEstimate
    """Of one trainer."""
    counts: dict[str, int]
    room: EngineRoom | None
    """Of an engine's GPU; None where the trainers sample by themselves."""
    timing: Timing
    assumed: Assumptions
    unseen: tuple[Row, ...]

    @property
    def step(self) -> StepTime:
        """Seconds of an optimiser step."""
        return self.timing.step()


@dataclass(frozen=True, slots=True)
class Outlook:
    """What of a run is the same on any number of GPUs."""

    config: RootConfig
    sight: Sight
    work: Workload
    shape: ModelShape
    compute: ComputeShape


def outlook(config: RootConfig) -> Outlook:
    """Look at the model and the data of a checked configuration.

    Raises:
        ConfigError, DataError: the run would stop for a reason that is seen without a GPU.
    """
    sight = look(config)
    compute = compute_shape(sight.model)
    if compute is None:
        raise ConfigError(
            "a plan counts operations, and of this architecture they are not known: a mixture of experts, say"
        )
    return Outlook(config, sight, workload(config, sight), model_shape(sight.model), compute)


def make_plan(
    seen: Outlook, machines: Machines, means: Lengths | None = None, assumed: Assumptions | None = None
) -> Plan:
    """What the run would be on those GPUs.

    Args:
        seen: the run.
        machines: the GPUs.
        means: lengths to compute the time for; memory is always that of the limits.
        assumed: shares of what data sheets promise; None is the usual ones.

    Raises:
        ConfigError: the GPUs cannot be shared out, or a mean is above its limit.
    """
    assumed, config, work, shape = assumed or Assumptions(), seen.config, seen.work, seen.shape
    gpu, (trainers, tensor_parallel) = GPUS[machines.gpu], _shared_out(config, machines)
    kind = parallel_kind(config)
    how = divided_among(config, trainers)
    memory = memory_estimate(config, work, shape, process=0, on_gpu=True, num_processes=trainers)
    load = load_of(config, work, trainers, means or Lengths())
    context = load.prompt_tokens + load.completion_tokens / 2
    room, compiled = None, False
    if isinstance(config.generation, VllmGenerationConfig):
        engine = config.generation.engine
        colocated = config.generation.vllm_mode is VllmMode.colocate
        # of a plan's GPUs servers have their own, which `generation.engine.devices` or their addresses name on the day
        share = engine_share(config.generation, beside=colocated)
        room = engine_room(shape, gpu.memory, share, tensor_parallel, context, gpu.sequences)
        compiled = not engine.enforce_eager
        if colocated:
            taken = Part("vLLM's share", room.share, room.share)
            memory = (
                replace(memory, phases=(*memory.phases, Phase("sampling by vLLM, awake", (taken,))))
                if engine.sleep
                else replace(memory, persistent=(*memory.persistent, taken))
            )
    layout = _layout(config, machines, trainers, room)
    costs = costs_of(gpu, shape, seen.compute, context, assumed, compiled=compiled)
    timing = Timing(
        costs, spread_over(costs, tensor_parallel, assumed.spread), load, layout,
        traffic_of(shape, how, to_engines=layout.engines > 0), links_of(gpu, machines.per_node, assumed, by_files=_by_files(config)),
        how.share(trainers, Held.states) / trainers,
    )  # fmt: skip
    return Plan(
        gpu, machines, kind, layout, tensor_parallel, batch_plan(config, work.num_train, trainers),
        work.num_train if work.has_rows else None, memory, parameter_counts(seen.sight.model), room, timing, assumed,
        tuple(seen.sight.unseen),
    )  # fmt: skip


def load_of(config: RootConfig, work: Workload, trainers: int, means: Lengths) -> Load:
    """What a step comes to, shared out over so many trainers."""
    schedule, limit = config.optimization, work.generation.max_completion_len
    for option, mean, most, setting in (
        ("--mean-prompt", means.prompt, config.generation.max_prompt_len, "generation.max_prompt_len"),
        ("--mean-completion", means.completion, limit, "generation.max_completion_len"),
    ):
        if mean > most:
            raise ConfigError(f"{option} {mean} is more than {setting}={most}")
    return Load(
        prompts=schedule.prompts_per_step,
        group=work.generation.num_generations,
        prompt_tokens=means.prompt or round(sum(work.train_lengths) / len(work.train_lengths)),
        completion_tokens=means.completion or limit,
        longest=limit,
        minibatches=schedule.minibatches,
        iterations=schedule.num_iterations,
        rounds=schedule.grad_accum_steps,
        slices=slice_passes(config, work, trainers)[0],
        old_scores=needs_old_scores(work.scoring, work.schedule),
        reference=reference_source(config) is ReferenceSource.model,
        checkpointing=config.model.gradient_checkpointing,
    )


def _shared_out(config: RootConfig, machines: Machines) -> tuple[int, int]:
    """Trainers, and GPUs of an engine."""
    generation = config.generation
    if not isinstance(generation, VllmGenerationConfig):
        return machines.gpus, 1
    devices = generation.engine.tensor_parallel_size
    if generation.vllm_mode is VllmMode.colocate:
        if machines.gpus > 1:
            raise ConfigError(
                f"generation.vllm_mode=colocate is for one process on one GPU, and --gpus is {machines.gpus}: give vLLM GPUs of its "
                "own with generation.vllm_mode=server"
            )
        return 1, 1
    trainers = machines.gpus - machines.servers * devices
    if trainers < 1 or machines.servers < 1:
        raise ConfigError(
            f"--servers {machines.servers} with generation.engine.tensor_parallel_size={devices} take "
            f"{machines.servers * devices} of --gpus {machines.gpus}, and one has to train: ask for more GPUs or fewer servers, "
            f"or sample where the trainers are with generation=local"
        )
    return trainers, devices


def _by_files(config: RootConfig) -> bool:
    """Whether weights reach servers on GPUs of their own through a folder, as they do where they are sent while training goes on."""
    generation = config.generation
    if not isinstance(generation, VllmGenerationConfig):
        return False
    if generation.weight_transfer is not WeightTransfer.auto:
        return generation.weight_transfer is WeightTransfer.reload
    return generation.async_steps > 0 or generation.vllm.sync_interval > 1


def _layout(config: RootConfig, machines: Machines, trainers: int, room: EngineRoom | None) -> Layout:
    generation = config.generation
    if room is None or not isinstance(generation, VllmGenerationConfig):
        at_once = generation.batch_size if isinstance(generation, LocalGenerationConfig) else 0
        return Layout(trainers, at_once=at_once, refills=False)
    servers = 0 if generation.vllm_mode is VllmMode.colocate else machines.servers
    asked = generation.max_in_flight * generation.num_generations // max(servers, 1)
    return Layout(trainers, servers, max(1, min(room.sequences, asked)), ahead=generation.async_steps > 0)

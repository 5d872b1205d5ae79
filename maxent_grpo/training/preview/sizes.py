"""From a run's configuration to the sizes that its memory and token counts follow from."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from maxent_grpo.config.generation import VllmGenerationConfig
from maxent_grpo.config.model import Attention
from maxent_grpo.config.parallel import Strategy
from maxent_grpo.config.resolve import batch_plan, reference_source, starts_as_base
from maxent_grpo.config.root import RootConfig
from maxent_grpo.models.adapter import ADAPTER, adapter_layers, adapter_parameters
from maxent_grpo.models.warm_start import SLICE_ROWS
from maxent_grpo.training.foreseen import slopes_are_known
from maxent_grpo.training.memory import (
    BLOCK_VARIABLE,
    HEAP_BLOCK,
    MemoryEstimate,
    Part,
    Phase,
    draw_bytes,
    optimizer_phase,
    sampling_phase,
    scoring_pass,
    scoring_phase,
    training_phases,
)
from maxent_grpo.training.memory_sharding import Sharding, in_shards, sharding
from maxent_grpo.training.memory_sizes import Held, ModelShape, Pass, Runs, ScoringPath
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.old_scores import needs_old_scores
from maxent_grpo.training.scoring.batch import budget_of_group
from maxent_grpo.training.settings import entropy_mode
from maxent_grpo.training.types.choices import ReferenceSource
from maxent_grpo.training.types.runtime import GenerationSettings, OptimizationSchedule, ScoringSettings


@dataclass(frozen=True, slots=True)
class Answers:
    """Demonstrations of the supervised stage: answers behind one prompt, and tokens of the longest."""

    per_prompt: int
    longest: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What is run: the settled settings, and the lengths of the prompts, or of a sample of them [tokens]."""

    generation: GenerationSettings
    scoring: ScoringSettings
    schedule: OptimizationSchedule
    num_train: int
    """Training prompts; 0 if the data were not read."""
    train_lengths: Sequence[int]
    eval_lengths: Sequence[int]
    demonstrations: Answers | None
    """None where no supervised stage comes first."""
    has_rows: bool = True
    """Whether the data were read; if not, the number of prompts is not known."""
    has_lengths: bool = True
    """Whether prompts were tokenised; if not, they have the length limit."""


def model_shape(model: PreTrainedModel) -> ModelShape:
    """The sizes of a model, which may be on the meta device; a part may be named otherwise in another architecture."""
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    hidden = int(config.hidden_size)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight  # pyright: ignore
    adapter = list(adapter_parameters(model).values())
    sizes = [parameter.numel() * parameter.dtype.itemsize for parameter in adapter]
    layers = int(config.num_hidden_layers)
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
        intermediate=int(getattr(config, "intermediate_size", None) or 4 * hidden),
        vocab=int(head.shape[0]),
        tied=head is embedding,
        itemsize=next(model.parameters()).dtype.itemsize,
        num_parameters=sum(parameter.numel() for parameter in model.parameters())
        - sum(parameter.numel() for parameter in adapter),
        adapter=sum(sizes),
        adapter_block=max(sizes, default=0),
        adapter_kept=math.ceil(sum(_kept_of_token(layer) for _, layer in adapter_layers(model)) / layers),
    )


def _kept_of_token(layer: Any) -> int:
    """A x, and x itself where it has to be brought to the matrices' type first [bytes]."""
    matrix = layer.lora_A[ADAPTER].weight
    rank, width = matrix.shape
    is_cast = matrix.dtype != layer.base_layer.weight.dtype
    return (rank + (width if is_cast else 0)) * matrix.dtype.itemsize


def parameter_counts(model: PreTrainedModel) -> dict[str, int]:
    """Parameters of each kind of module; tied ones are counted once, as the embedding."""
    kinds = ("embedding", "attention", "feed-forward", "norms and other", "output head", "adapter")
    counts: dict[str, int] = {kind: 0 for kind in kinds}  # noqa: C420 - fromkeys would narrow the keys' type
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    at_ends = {id(head.weight): "output head", id(embedding.weight): "embedding"}  # pyright: ignore
    at_ends |= {id(parameter): "adapter" for parameter in adapter_parameters(model).values()}
    for name, parameter in model.named_parameters():
        kind = "attention" if "attn" in name else "feed-forward" if "mlp" in name else "norms and other"
        counts[at_ends.get(id(parameter), "norms and other" if "norm" in name else kind)] += parameter.numel()
    return {name: count for name, count in counts.items() if count}


def memory_estimate(
    config: RootConfig, work: Workload, shape: ModelShape, *, process: int, on_gpu: bool, num_processes: int = 1
) -> MemoryEstimate:
    """The memory of one process of the run when every completion has its full length.

    Args:
        config: the checked settings.
        work: what they come to.
        shape: the model's.
        process: memory of the program before it has a model [bytes]; not counted for a GPU.
        on_gpu: whether tensors live on a GPU, whose allocator hands freed blocks on.
        num_processes: processes that share each step.
    """
    slices, passes = slice_passes(config, work, num_processes)
    path = _path(config, work, len(passes), on_gpu)
    persistent = [
        Part("weights", shape.weights, shape.embedding, Held.weights),
        Part("optimiser states", 2 * shape.updated, shape.updated_block, Held.states),
    ]
    if shape.master:
        persistent.append(Part("float32 copy of the weights", shape.master, shape.updated_block, Held.states))
    if shape.adapter:
        persistent.insert(1, Part("adapter", shape.adapter, shape.adapter_block, Held.weights))
    has_reference = reference_source(config) is ReferenceSource.model
    if has_reference and not starts_as_base(config):
        name = "reference adapter" if shape.adapter else "reference copy"
        persistent.append(Part(name, shape.trained, shape.trained_block))
    phases = [*_warm_start(config, work, shape, path)]
    draw = draw_bytes(
        shape, restricted=path.restricted, tempered=path.tempered,
        nucleus=work.generation.gen_top_p < 1, counted=_counts_tokens(work.generation),
    )  # fmt: skip
    generation = config.generation
    samples_here = not isinstance(generation, VllmGenerationConfig) or generation.vllm.backfill_local
    how = {"draw": draw, "eager": path.eager, "on_gpu": on_gpu}
    if samples_here:
        asked, samples = _loader_prompts(config, num_processes), generation.num_generations
        phases.append(_sampling("sampling", work, shape, asked, samples, work.train_lengths, **how))
    if needs_old_scores(work.scoring, work.schedule):
        phases.append(scoring_phase("scoring at rollout weights", shape, passes[0], path))
    if has_reference:
        phases.append(scoring_phase("reference scoring", shape, passes[0], replace(path, exact_entropy=False)))
    phases += training_phases(shape, passes, path, more_slices=slices > 1)
    phases.append(optimizer_phase(shape, lists=on_gpu))
    if config.evaluation.enabled and work.eval_lengths and samples_here:
        asked = min(config.evaluation.batch_size, math.ceil(len(work.eval_lengths) / num_processes))
        samples = config.evaluation.num_samples
        phases.append(_sampling("evaluation", work, shape, asked, samples, work.eval_lengths, **how))
    if shape.adapter and config.checkpoint.final_model and not on_gpu:
        phases.append(Phase("writing the model", (Part("merged weights", shape.weights, shape.embedding),)))
    how = divided_among(config, num_processes)
    is_served = isinstance(generation, VllmGenerationConfig) and generation.vllm.sync_weights and not samples_here
    if is_served and Held.weights in how.divided:
        phases.append(Phase("weights for the servers", (), Runs.sampling))
    process, returned_from = (0, 0) if on_gpu else (process, heap_block())
    whole = MemoryEstimate(process, tuple(persistent), tuple(phases), on_gpu, returned_from)
    return in_shards(whole, shape, how)


def heap_block() -> int:
    """The size from which on freed blocks are given back by a process in this environment [bytes]."""
    said = os.environ.get(BLOCK_VARIABLE, "")
    return int(said) if said.isdecimal() else HEAP_BLOCK


def divided_among(config: RootConfig, processes: int) -> Sharding:
    """What so many trainers hold of the model under ``optimization.parallel``."""
    settings = config.optimization.parallel
    how = sharding(parallel_kind(config), processes)
    if processes == 1:
        return how
    if settings.strategy is Strategy.fsdp:
        whole = how.whole_for
        if not settings.fsdp.reshard_after_forward:
            whole |= {Runs.forward, Runs.backward}
        return replace(how, whole_for=whole, elsewhere=how.divided if settings.fsdp.cpu_offload else frozenset())
    if settings.strategy is Strategy.deepspeed:
        elsewhere = {Held.states} if settings.deepspeed.offload_optimizer else set[Held]()
        if settings.deepspeed.offload_parameters:
            elsewhere.add(Held.weights)
        return replace(how, elsewhere=frozenset(elsewhere))
    return how


def parallel_kind(config: RootConfig) -> str:
    """How processes that train together hold the model: one of ``memory_sharding.KINDS``."""
    settings = config.optimization.parallel
    return (
        f"zero{settings.deepspeed.zero_stage}" if settings.strategy is Strategy.deepspeed else settings.strategy.value
    )


def _path(config: RootConfig, work: Workload, passes: int, on_gpu: bool) -> ScoringPath:
    """As a run takes it whose model has an output head that can be computed apart, which only trying shows."""
    generation, scoring = work.generation, work.scoring
    method = resolve_method(
        scoring, score_mode=scoring.weighting.score_mode, max_completion_len=generation.max_completion_len
    )
    has_old = needs_old_scores(scoring, work.schedule)
    return ScoringPath(
        eager=config.model.attention is Attention.eager,
        checkpointing=config.model.gradient_checkpointing,
        restricted=bool(
            generation.allowed_token_ids is not None
            or generation.gen_top_k
            or generation.gen_top_p < 1
            or generation.gen_min_p
        ),
        tempered=generation.gen_temperature != 1,
        exact_entropy=entropy_mode(scoring) == "exact",
        entropy_gradient=scoring.entropy_coef > 0,
        separate_head=True,
        foreseen=slopes_are_known(method, kl_beta=scoring.kl_beta, has_old=has_old, passes=passes),
        on_gpu=on_gpu,
    )


def _counts_tokens(generation: GenerationSettings) -> bool:
    repetition = generation.gen_repetition_penalty
    return bool(
        generation.gen_presence_penalty
        or generation.gen_frequency_penalty
        or (repetition is not None and repetition != 1)
    )


def _loader_prompts(config: RootConfig, num_processes: int) -> int:
    """Prompts of one process in one loader batch."""
    schedule = config.optimization
    return math.ceil(math.ceil(schedule.prompts_per_step / schedule.grad_accum_steps) / num_processes)


def slice_passes(config: RootConfig, work: Workload, num_processes: int) -> tuple[int, list[Pass]]:
    """Slices of one step of a process, and the forward passes of the largest one, the largest first."""
    batching, group = config.scoring.batching, config.generation.num_generations
    rows, longest = _loader_prompts(config, num_processes) * group, max(work.train_lengths)
    completion = work.generation.max_completion_len
    shared = batching.share_prompts and not config.scoring.trl_reference_scoring
    size = min(batching.score_slice or rows, rows)
    if batching.max_tokens > 0:
        size = _rows_within(batching.max_tokens, group if shared else 1, longest, completion, size)
    num_slices = math.ceil(rows / size) * batch_plan(config, work.num_train).loader_batches_per_step
    chunk = min(batching.logprob_chunk_size or size, size)
    sizes = [chunk] * (size // chunk) + ([size % chunk] if size % chunk else [])
    laid_out = config.model.attention is Attention.sdpa
    return num_slices, [
        scoring_pass(part, group, min(work.train_lengths), longest, completion, shared, laid_out) for part in sizes
    ]


def _rows_within(budget: int, group: int, prompt: int, completion: int, rows: int) -> int:
    """Sequences of full length that a slice of ``budget`` tokens takes: whole groups, or part of one that is too large, at least one."""
    groups = budget // (prompt + group * completion)
    of_one = (max(budget, budget_of_group(prompt) if group > 1 else 0) - prompt) // completion
    return min(max(groups * group if groups else min(of_one, group), 1), rows)


def _sampled_together(prompts: int, samples: int, batch_size: int) -> tuple[int, int]:
    """Prompts whose cache is held, and completions decoded, at one time."""
    if batch_size <= 0:
        return prompts, prompts * samples
    held = min(prompts, max(1, batch_size // samples))
    return held, min(batch_size, held * samples)


def _sampling(
    name: str, work: Workload, shape: ModelShape, asked: int, samples: int, lengths: Sequence[int], **rest: Any
) -> Phase:
    """Sampling ``samples`` completions of ``asked`` prompts of a process, of which the longest has the most of ``lengths``."""
    prompts, sequences = _sampled_together(asked, samples, work.generation.batch_size)
    return sampling_phase(
        name, shape, prompts=prompts, sequences=sequences, prompt=max(lengths),
        completion=work.generation.max_completion_len, **rest,
    )  # fmt: skip


def _warm_start(config: RootConfig, work: Workload, shape: ModelShape, path: ScoringPath) -> list[Phase]:
    """The supervised stage: slices of a fixed number of rows, logits at every place; its optimiser is over all weights."""
    if work.demonstrations is None:
        return []
    settings = config.model.warm_start
    rows, answers = min(SLICE_ROWS, settings.batch_size), work.demonstrations
    width = max(work.train_lengths) + answers.per_prompt * (answers.longest - 1)
    one = Pass(rows, width, width, rows * answers.per_prompt * answers.longest)
    plain = replace(
        path, restricted=False, tempered=False, exact_entropy=False, entropy_gradient=False, separate_head=False
    )
    base = replace(shape.without_adapter(), itemsize=max(shape.itemsize, 4))  # trained in 32 bits at least
    phases = training_phases(base, [one], plain, more_slices=settings.batch_size > SLICE_ROWS)
    own = (Part("its optimiser states", 2 * base.trained, base.trained_block),) if shape.adapter else ()
    return [Phase(phase.name.replace("training", "warm start"), (*own, *phase.parts)) for phase in phases]

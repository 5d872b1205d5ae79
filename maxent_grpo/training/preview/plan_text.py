"""A plan as aligned plain text: who does what, the batch, memory, the time of a step and what holds it up."""

from __future__ import annotations

from maxent_grpo.config.generation import VllmGenerationConfig, VllmMode
from maxent_grpo.config.root import RootConfig
from maxent_grpo.telemetry.summary import Row, batch_rows, section
from maxent_grpo.training.memory_engine import PASSES, EngineRoom
from maxent_grpo.training.preview.plan import Plan
from maxent_grpo.training.preview.text import GIB, count_text, memory_rows, size_text

KINDS_IN_WORDS = {
    "ddp": "each holds the whole model",
    "zero2": "gradients and optimiser states are divided among them",
    "fsdp": "weights, gradients and optimiser states are divided among them",
    "zero3": "weights, gradients and optimiser states are divided among them",
}
REMEDIES = {
    "sampling": "more GPUs that sample, or vLLM in place of the local sampler, with generation.engine.enforce_eager=false; where the longest completion is waited for, generation.engine.tensor_parallel_size, or a lower limit",
    "gathering weights": "engines of their own for sampling: generation=vllm",
    "scoring at rollout weights": "one update per rollout: minibatches=1, num_iterations=1",
    "reference": "no pull towards a reference: scoring.kl_beta=0, scoring.weighting.beta=0",
    "forward": "more trainers",
    "backward": "more trainers; without model.gradient_checkpointing where memory allows",
    "exchange": "fewer slices: a larger scoring.batching.max_tokens; more prompts per step for each trainer",
    "update": "states that are divided; LoRA",
    "weight sync": "generation.weight_transfer=nccl; a larger generation.vllm.sync_interval; more steps per rollout",
}
"""Part of a step -> what makes it shorter."""


def plan_text(config: RootConfig, plan: Plan) -> str:
    """All sections of a plan."""
    mark = "memory of a trainer, estimated" if plan.layout.engines else "memory of a process, estimated"
    sections = [
        *section(f"plan: {plan.machines.gpus} x {plan.gpu.name}", process_rows(config, plan)),
        *section("batch", batch_rows(config, plan.num_rows, plan.layout.trainers)),
        *section(mark, memory_rows(plan.memory, plan.gpu.memory, plan.counts, "")),
        *(section("memory of a GPU that samples, estimated", room_rows(plan.room)) if plan.room is not None else []),
        *section("time of a step, estimated", time_rows(plan)),
        *(section("not looked at here", list(plan.unseen)) if plan.unseen else []),
    ]
    return "\n".join(sections).rstrip()


def process_rows(config: RootConfig, plan: Plan) -> list[Row]:
    """Who does what, and on how many nodes."""
    layout, machines, generation = plan.layout, plan.machines, config.generation
    nodes = -(-machines.gpus // machines.per_node)
    place = f"{nodes} nodes of {machines.per_node} GPUs" if nodes > 1 else "one node"
    held = f", {KINDS_IN_WORDS[plan.kind]} ({plan.kind})" if layout.trainers > 1 else ""
    rows = [("machines", place), ("trainers", f"{layout.trainers}{held}")]
    if not isinstance(generation, VllmGenerationConfig):
        return [*rows, ("sampling", "by the trainers themselves, in turn with training")]
    if generation.vllm_mode is VllmMode.colocate:
        return [*rows, ("sampling", "vLLM in the same process, in turn with training")]
    spread = f", each over {plan.tensor_parallel} GPUs" if plan.tensor_parallel > 1 else ""
    when = "while the trainers train" if layout.ahead else "in turn with training"
    return [*rows, ("sampling", f"{layout.engines} vLLM server{'s' if layout.engines > 1 else ''}{spread}, {when}")]


def room_rows(room: EngineRoom) -> list[Row]:
    """What an engine makes of its share of a GPU."""
    cache = f"{_right(max(room.cache, 0))}  {count_text(room.sequences)} sequences together in an engine"
    if room.cache < 0:
        cache = f"{_right(0)}  the weights do not fit: raise generation.engine.tensor_parallel_size"
    return [
        ("its share", _right(room.share)),
        ("weights", _right(room.weights)),
        ("passes", _right(PASSES)),
        ("key-value cache", cache),
    ]


def time_rows(plan: Plan) -> list[Row]:
    """Each part of a step, the whole, and what holds it up."""
    step, load, total = plan.step, plan.timing.load, plan.step.total
    rows: list[Row] = []
    for name, seconds in step.parts.items():
        if not seconds:
            continue
        share = "meanwhile" if name in step.hidden else f"{seconds / total:>4.0%}"
        rows.append((name, f"{_figure(seconds)} s  {share}"))
    steps = plan.batch.total_steps
    length = (
        "at their length limit"
        if load.completion_tokens == load.longest
        else f"of {load.completion_tokens} tokens on average"
    )
    how = "the longer of sampling and training" if step.ahead else "one after the other"
    remedy = REMEDIES[step.bottleneck]
    return [
        *rows,
        ("a step", f"{_figure(total)} s  {how}; completions {length}"),
        (
            "the run",
            f"{_figure(steps * total / 3600)} h  {count_text(steps)} steps, {steps * total / 3600 * plan.machines.gpus:,.0f} GPU hours",
        ),
        ("tokens", f"{step.tokens_per_second:>10,.0f} /s of completions"),
        ("bottleneck", f"{step.bottleneck}; what helps: {remedy}"),
        ("assumed", plan.assumed.text()),
        ("not counted", "grading, evaluations, checkpoints, and processes that wait for one with longer completions"),
    ]


def _right(size: int) -> str:
    return f"{size_text(size) if size else f'{0 / GIB:.2f} GiB':>11}"


def _figure(number: float) -> str:
    """Three significant digits, in ten places."""
    digits = 0 if number >= 100 else 1 if number >= 10 else 2 if number >= 1 else 4
    return f"{number:>10,.{digits}f}"

"""The start-up summary: the resolved method, the batch arithmetic, the data, and the settings without effect."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from maxent_grpo.config.controller import (
    EffectiveSizeControllerConfig,
    EntropyControllerConfig,
    KlControllerConfig,
)
from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.config.generation import VllmGenerationConfig, VllmMode
from maxent_grpo.config.parallel import Strategy
from maxent_grpo.config.resolve import batch_plan, chosen_options
from maxent_grpo.config.root import RootConfig
from maxent_grpo.telemetry.data_summary import data_rows as described_data
from maxent_grpo.telemetry.inert import inert_settings
from maxent_grpo.telemetry.method_summary import Row, method_rows
from maxent_grpo.training.types.choices import KlTarget, MetaMode, TargetSchedule

HELD = {
    Strategy.ddp: "each of which holds all weights and the whole optimiser",
    Strategy.fsdp: "over which weights, gradients and optimiser are cut",
    Strategy.deepspeed: "over which ZeRO cuts",
}
"""What processes hold under each strategy, in words."""
KNOWN_FACTS = ("train_rows", "eval_rows", "dropped_prompts", "num_processes", "data")
"""Facts with a place of their own; every other one is listed under its own name."""


NOT_READ = "not read"


def section(title: str, rows: list[Row]) -> list[str]:
    """A heading with aligned rows of label and text beneath it."""
    width = max((len(label) for label, _ in rows), default=0)
    return [title, *(f"  {label:<{width}}  {value}".rstrip() for label, value in rows), ""]


def _controller_rows(config: RootConfig) -> list[Row]:
    """What the controller moves, from where, between which bounds, and towards what."""
    controller = config.controller
    rows: list[Row] = []
    for path in controller.adapted():
        start = reduce(getattr, path.split("."), config)
        between = controller.bounds().get(path)
        rows.append(("moves", f"{path} from {start:g}" + (f", in [{between[0]:g}, {between[1]:g}]" if between else "")))
    match controller:
        case EntropyControllerConfig():
            rows += [
                ("target", f"mean entropy of the target weights = low + f (high - low), f = {_fraction(controller)}"),
                ("law", f"log tau += {controller.learning_rate:g} (target - average at rate {controller.ema:g}), after "
                 f"{controller.warmup_steps} steps of warm-up"),
            ]  # fmt: skip
        case EffectiveSizeControllerConfig():
            rows += [
                ("target", f"mean exp(entropy of the target weights) = {controller.target_size:g} completions"),
                ("law", "tau solved for each step's groups"),
            ]
        case KlControllerConfig():
            what = "token KL to the reference" if controller.target is KlTarget.kl_beta else "KL(w || pi_ref)"
            rows += [("target", f"mean {what} = {controller.target_kl:g} nats"), ("law", str(controller.law))]
        case MetaControllerConfig():
            rows += _meta_rows(controller)
        case _:
            pass
    return rows


def _meta_rows(controller: MetaControllerConfig) -> list[Row]:
    """The outer objective of a meta controller and how it is descended."""
    objective = "minus the held-out reward after the update, differentiated through the update"
    if controller.mode is MetaMode.analytic:
        kl = f", mean KL(w || pi_ref) = {controller.target_kl:g} nats" if controller.adapt_beta else ""
        objective = f"entropy of the target weights = log c + f (log n - log c), f = {controller.target_fraction:g}{kl}"
    law = (
        f"{controller.optimizer} in the logarithm at rate {controller.learning_rate:g}, every {controller.every_n_steps} steps, "
        f"changes up to {controller.max_log_change:g}"
    )
    return [("target" if controller.mode is MetaMode.analytic else "minimises", objective), ("law", law)]


def _fraction(controller: EntropyControllerConfig) -> str:
    schedule, start = controller.schedule, f"{controller.target_fraction:g}"
    final = f"{schedule.final:g} at step {schedule.horizon}"
    if schedule.kind is TargetSchedule.linear:
        return f"{start} to {final}"
    if schedule.kind is TargetSchedule.peak:
        return f"{start} to {schedule.peak:g} at step {schedule.peak_step}, to {final}"
    return start


def batch_rows(config: RootConfig, num_train_prompts: int | None, num_processes: int) -> list[Row]:
    """The batch arithmetic of a run in so many processes; the number of prompts is None where rows could not be read."""
    plan = batch_plan(config, num_train_prompts or 0, num_processes)
    schedule = config.optimization
    if plan.slices_per_step is None:
        slices = f"by token budget: max_tokens={config.scoring.batching.max_tokens}"
    else:
        slices = plan.slices_per_step
    counts = [
        ("prompts per step", plan.prompts_per_step),
        ("completions per prompt", plan.group_size),
        ("sequences per step", plan.sequences_per_step),
        ("loader batches per step", plan.loader_batches_per_step),
        (f"slices per step{' of a process' if num_processes > 1 else ''}", slices),
        ("minibatches", schedule.minibatches),
        ("iterations", schedule.num_iterations),
        ("prompts per rollout", plan.prompts_per_rollout),
        ("steps per rollout", plan.steps_per_rollout),
        *([("rollouts sampled ahead", config.generation.async_steps)] if config.generation.async_steps else []),
        ("steps per epoch", NOT_READ if num_train_prompts is None else plan.steps_per_epoch),
        ("steps in all", plan.total_steps),
    ]
    width = max(len(str(count)) for _, count in counts if isinstance(count, int))
    return [(label, f"{count:>{width}}" if isinstance(count, int) else str(count)) for label, count in counts]


def _vllm_rows(config: RootConfig) -> list[Row]:
    """Where vLLM runs and how often it gets new weights; empty for another sampler."""
    generation = config.generation
    if not isinstance(generation, VllmGenerationConfig):
        return []
    client = generation.vllm
    if generation.vllm_mode is VllmMode.colocate:
        where = "in this process"
    elif client.url is not None:
        where = f"servers at {client.url}"
    else:
        where = "a server of this run's, on loopback; its log is vllm/server.log in the directory"
    every = "each rollout" if client.sync_interval == 1 else f"every {client.sync_interval} rollouts"
    weights = f"brought before {every}, and before each evaluation" if client.sync_weights else "those it started with"
    return [
        ("engine", where),
        ("weights", weights),
        ("staleness", f"at most {client.max_staleness} optimiser steps"),
        ("a failed request", f"is sent again up to {client.max_retries} times"),
        ("what does not come", "is sampled here" if client.backfill_local else "stops the run, which is saved"),
    ]


def _rows_read(facts: Mapping[str, object], name: str) -> int | None:
    return None if facts.get(name, 0) is None else _count(facts, name, 0)


def _count(facts: Mapping[str, object], name: str, default: int) -> int:
    value = facts.get(name, default)
    if not isinstance(value, int):
        raise TypeError(f"fact {name} is a {type(value).__name__}, not a whole number")
    return value


def _process_rows(config: RootConfig, num_processes: int) -> list[Row]:
    """How a run of several processes is spread over them."""
    strategy = config.optimization.parallel.strategy
    return [("processes", f"{num_processes}, {HELD[strategy]}")] if num_processes > 1 else []


def startup_summary(config: RootConfig, facts: Mapping[str, object]) -> str:
    """What is about to run, as aligned plain text.

    Args:
        config: the resolved settings.
        facts: what only the run knows: ``train_rows``, ``eval_rows``, ``dropped_prompts`` and ``num_processes`` as whole
            numbers, the first two None where the rows could not be read, ``data`` as ``training.prepared_rows.data_facts`` gives it; anything else (``device``, ``parameters``, ...) is listed as given.
    """
    options = chosen_options(config)
    train_rows, eval_rows = _rows_read(facts, "train_rows"), _rows_read(facts, "eval_rows")
    num_processes = _count(facts, "num_processes", 1)
    run_rows = [(name.replace("_", " "), str(value)) for name, value in facts.items() if name not in KNOWN_FACTS]
    data_rows = [
        ("training prompts", NOT_READ if train_rows is None else str(train_rows)),
        ("held-out prompts", NOT_READ if eval_rows is None else str(eval_rows)),
        ("dropped prompts", str(_count(facts, "dropped_prompts", 0))),
    ]
    data = facts.get("data")
    if isinstance(data, Mapping):
        data_rows += described_data(data)
    controller_rows, vllm_rows = _controller_rows(config), _vllm_rows(config)
    lines = [
        *section(f"method: {options['scoring']}", method_rows(config)),
        *(section(f"controller: {options['controller']}", controller_rows) if controller_rows else []),
        *(section("sampling: vllm", vllm_rows) if vllm_rows else []),
        *section("batch", batch_rows(config, train_rows, _count(facts, "num_processes", 1))),
        *section(f"data: {options['data']}", data_rows),
        *section(f"run: model {options['model']}, seed {config.seed}", _process_rows(config, num_processes) + run_rows),
    ]
    idle = inert_settings(config)
    if idle:
        lines += ["has no effect:", *(f"  {sentence}" for sentence in idle), ""]
    return "\n".join(lines)

"""The preview as aligned plain text: token counts, length of the run, memory, and where it would write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maxent_grpo.config.resolve import BatchPlan, batch_plan, reference_source
from maxent_grpo.config.root import RootConfig
from maxent_grpo.telemetry.summary import NOT_READ, Row, section
from maxent_grpo.training.memory import MIB, MemoryEstimate, ModelShape, Part
from maxent_grpo.training.old_scores import needs_old_scores
from maxent_grpo.training.preview.sizes import Workload
from maxent_grpo.training.types.choices import ReferenceSource

GIB = 2**30
LEFT_OUT = "what an allocator loses between blocks"
LEFT_OUT_GPU = "the CUDA context, workspaces of its libraries, and what the allocator loses between blocks"


def size_text(size: float) -> str:
    """A size in MiB, or GiB from 1 GiB on."""
    if size >= GIB:
        return f"{size / GIB:,.2f} GiB"
    mebi = size / MIB
    return f"{mebi:,.0f} MiB" if mebi >= 10 else f"{mebi:,.1f} MiB"


def count_text(count: float) -> str:
    """A count with thousands separated."""
    return f"{count:,.0f}"


def token_rows(config: RootConfig, work: Workload, first_step: int = 0) -> list[Row]:
    """Prompt lengths as they are, and tokens at most, with every completion at its length limit."""
    plan = batch_plan(config, work.num_train)
    group, limit = plan.group_size, work.generation.max_completion_len
    rows = [("training prompts", _lengths(work.train_lengths, work.has_lengths))]
    if work.eval_lengths:
        rows.append(("held-out prompts", _lengths(work.eval_lengths, work.has_lengths)))
    mean = sum(work.train_lengths) / len(work.train_lengths)
    sampled = _tokens(plan.prompts_per_rollout, mean, group, limit)
    trained = _tokens(plan.prompts_per_step, mean, group, limit, shared=config.scoring.batching.share_prompts)
    steps = max(0, plan.total_steps - first_step)
    rollouts = -(-steps // plan.steps_per_rollout)
    rows += [
        ("a rollout", _at_most(*sampled)),
        ("a training step", _at_most(*trained)),
    ]
    totals = [rollouts * sum(sampled), steps * sum(trained), 0.0]
    evaluations = evaluation_steps(config, work, first_step)
    if evaluations and not work.has_rows:
        rows.append(("an evaluation", f"not counted, held-out rows are {NOT_READ}"))
    elif evaluations:
        mean_held_out = sum(work.eval_lengths) / len(work.eval_lengths)
        samples = _samples_of_an_evaluation(config)
        evaluated = (
            len(samples) * len(work.eval_lengths) * mean_held_out,
            float(len(work.eval_lengths) * sum(samples) * limit),
        )
        rows.append(("an evaluation", _at_most(*evaluated)))
        totals[2] = len(evaluations) * sum(evaluated)
    rows.append(
        (
            "the whole run",
            f"at most {count_text(sum(totals))}: sampled {count_text(totals[0])}, trained {count_text(totals[1])}, "
            f"evaluated {count_text(totals[2]) if work.has_rows else 'not counted'}",
        )
    )
    return rows


def _samples_of_an_evaluation(config: RootConfig) -> list[int]:
    """Completions of a held-out prompt in each pass over them: sampled, greedy, and under each seed tag."""
    evaluation = config.evaluation
    seeds = evaluation.seed_eval
    tagged = [seeds.samples_per_seed] * seeds.num_seeds if seeds.enabled else []
    return [evaluation.num_samples, *([1] if evaluation.greedy else []), *tagged]


def _lengths(lengths: Sequence[int], are_known: bool) -> str:
    if not are_known:
        return f"taken to have {max(lengths)} tokens each, the limit"
    mean = sum(lengths) / len(lengths)
    return f"{min(lengths)} to {max(lengths)} tokens, mean {mean:.1f}"


def _tokens(prompts: int, mean: float, samples: int, limit: int, shared: bool = True) -> tuple[float, float]:
    """Prompt tokens, once per prompt or once per completion, and the most completion tokens."""
    return prompts * mean * (1 if shared else samples), float(prompts * samples * limit)


def _at_most(prompt: float, completion: float) -> str:
    return f"{count_text(prompt)} of prompts + at most {count_text(completion)} of completions"


def evaluation_steps(config: RootConfig, work: Workload, first_step: int = 0) -> list[int]:
    """The steps after which held-out rows are sampled; 0 is before training."""
    if not config.evaluation.enabled or not work.eval_lengths:
        return []
    total, every = batch_plan(config, work.num_train).total_steps, config.evaluation.every_n_steps
    regular = range(first_step + 1, total + 1)
    after = [step for step in regular if step == total or (every is not None and step % every == 0)]
    return [0, *after] if first_step == 0 else after


def checkpoint_steps(config: RootConfig, plan: BatchPlan, first_step: int = 0) -> list[int]:
    """The steps at which a checkpoint is due whatever the evaluations say."""
    every = config.checkpoint.every_n_steps
    return [
        step
        for step in range(first_step + 1, plan.total_steps + 1)
        if step == plan.total_steps or (every is not None and step % every == 0)
    ]


def length_rows(config: RootConfig, work: Workload, shape: ModelShape, first_step: int = 0) -> list[Row]:
    """Steps, evaluations and checkpoints to come, and what stays on the disk."""
    plan = batch_plan(config, work.num_train)
    evaluations, saved = evaluation_steps(config, work, first_step), checkpoint_steps(config, plan, first_step)
    early = ", or until the early stop" if config.checkpoint.early_stop_patience is not None else ""
    begin = f" after the {first_step} of the checkpoint" if first_step else ""
    at_most = config.checkpoint.best_metric is not None
    most = len({*saved, *(step for step in evaluations if step)}) if at_most else len(saved)
    kept = most if config.checkpoint.keep_last == 0 else min(most, config.checkpoint.keep_last + at_most)
    each = checkpoint_bytes(config, shape)
    return [
        ("steps", f"{count_text(max(0, plan.total_steps - first_step))}{begin}{early}"),
        ("evaluations", _steps(evaluations)),
        (
            "checkpoints",
            f"{'at most ' if most != len(saved) else ''}{most}, of which {kept} kept; {size_text(each)} each, "
            f"{size_text(kept * each)} in all ({'adapter' if shape.adapter else 'weights'}, optimiser{_moving(config)})",
        ),
        ("trained model", _final_model(config, shape)),
    ]


def _final_model(config: RootConfig, shape: ModelShape) -> str:
    if not config.checkpoint.final_model:
        return "not written (checkpoint.final_model=false)"
    adapter = f", and the adapter, {size_text(shape.adapter)}" if shape.adapter else ""
    return f"model/ when training ends, {size_text(shape.weights)}{adapter}"


def _steps(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps if len(steps) <= 8 else [*steps[:3], "...", steps[-1]]))
    return f"{len(steps)}, at steps {shown}" if steps else "none"


def _moving(config: RootConfig) -> str:
    return ", reference" if _reference_moves(config) else ""


def _reference_moves(config: RootConfig) -> bool:
    kept = reference_source(config) is ReferenceSource.model
    return kept and config.scoring.reference_sync.every_n_steps > 0


def checkpoint_bytes(config: RootConfig, shape: ModelShape) -> int:
    """What is trained, two moments and a moving reference; counters, tokenizer and a rollout in use are small beside them."""
    return shape.trained * (4 if _reference_moves(config) else 3)


def scoring_note(work: Workload) -> str | None:
    """A sentence where rollouts are scored once more before the first update."""
    if needs_old_scores(work.scoring, work.schedule):
        return "each rollout is also scored once without gradient, before its first update"
    return None


def memory_rows(
    estimate: MemoryEstimate, available: int | None, counts: Mapping[str, int], where: str = " here"
) -> list[Row]:
    """The components, each phase at its worst moment, and the peak; ``available`` is None where the device is elsewhere."""
    total = sum(counts.values())
    shares = ", ".join(f"{name} {count_text(count)}" for name, count in counts.items())
    rows: list[Row] = []
    if estimate.process:
        rows.append(
            ("the program", f"{_right(estimate.process)}  Python, libraries and data, measured in this process")
        )
    rows += [
        (part.name, f"{_right(part.size)}  {f'{count_text(total)} parameters: {shares}' if not index else ''}".rstrip())
        for index, part in enumerate(estimate.persistent)
    ]
    for phase in estimate.phases:
        parts = ", ".join(f"{part.name} {size_text(part.size)}" for part in _shown(phase.parts))
        rows.append((phase.name, f"{_right(phase.size)}  {parts}"))
    worst = estimate.worst
    if estimate.kept(worst):
        note = f"blocks under {size_text(estimate.returned_from)} that other phases have freed"
        rows.append(("kept by the heap", f"{_right(estimate.kept(worst))}  {note}"))
    rows += [
        ("peak", f"{_right(estimate.peak)}  in {worst.name}; every completion at its length limit"),
        (
            f"available{where}",
            f"{'no GPU':>11}" if available is None else f"{_right(available)}{_verdict(estimate.peak, available)}",
        ),
        ("not counted", LEFT_OUT_GPU if estimate.on_gpu else LEFT_OUT),
    ]
    return rows


def _shown(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.size]


def _right(size: int) -> str:
    return f"{size_text(size):>11}"


def _verdict(peak: int, available: int) -> str:
    if peak <= available:
        return ""
    return (
        f"  less than the peak by {size_text(peak - available)}: lower scoring.batching.max_tokens or score_slice, "
        "generation.batch_size or evaluation.batch_size, or the sizes above; of several processes each holds less with "
        "optimization.parallel.strategy=fsdp"
    )


def preview_text(
    summary: str, config: RootConfig, work: Workload, shape: ModelShape, memory: list[Row], first_step: int,
    unseen: Sequence[Row],
) -> str:  # fmt: skip
    """All sections, what could not be looked at, and the closing line."""
    tokens = token_rows(config, work, first_step)
    note = scoring_note(work)
    if note is not None:
        tokens.append(("", note))
    if work.generation.use_vllm:
        memory = [*memory, ("", "vLLM's own memory comes on top of it")]
    lines = [
        *section("tokens", tokens),
        *section("length", length_rows(config, work, shape, first_step)),
        *section("memory, estimated", memory),
        *(section("not looked at here", list(unseen)) if unseen else []),
        f"would write to {config.run.dir}",
    ]
    return "\n".join([summary, *lines])

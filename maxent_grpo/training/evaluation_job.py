"""An evaluation of its own: models loaded one after another, asked the same problems, and put into figures.

Nothing is trained and nothing but what is asked for is kept in memory: a batch of problems is sampled, graded, written and
reduced to its rows' figures before the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedModel

from maxent_grpo.config.evaluated import Split
from maxent_grpo.config.resolve import longest_sequence, reference_source
from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.models.build import LoadedModel, build_model
from maxent_grpo.models.lora import attach_adapter
from maxent_grpo.rewards.batch import TrainerState
from maxent_grpo.tasks.base import Task, TaskRow
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.tokenize import PromptCache, RenderedRows
from maxent_grpo.telemetry.quiet import QuietWriter
from maxent_grpo.training.checkpoint.restored import restore_weights
from maxent_grpo.training.checkpoint.weights import load_model_weights
from maxent_grpo.training.evaluation.build import EvaluationParts, build_validation
from maxent_grpo.training.evaluation.evaluate import evaluate_rows, row_record
from maxent_grpo.training.evaluation.exact import exact_rows, summarise_exact
from maxent_grpo.training.evaluation.sampled import EvaluatedRow, row_figures, sample_rows
from maxent_grpo.training.evaluation.seeds import answer_under_seeds, summarise_seeds
from maxent_grpo.training.evaluation_plan import EvaluationPlan, Subject
from maxent_grpo.training.evaluation_result import GREEDY
from maxent_grpo.training.optim import resolve_schedule
from maxent_grpo.training.prepared_rows import row_renderer
from maxent_grpo.training.reward_terms import build_rewards
from maxent_grpo.training.samplers import local_generator, sampled_distribution
from maxent_grpo.training.scoring.head_probe import separate_head
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.scoring.sharing import prompt_sharing
from maxent_grpo.training.settings import evaluation_settings, generation_settings, scoring_settings
from maxent_grpo.training.setup import make_accelerator, start_warm
from maxent_grpo.training.types.logging import LoggingHandles
from maxent_grpo.training.types.rewards import ValidationContext
from maxent_grpo.training.types.runtime import RuntimeHandles


@dataclass(slots=True)
class Answers:
    """What one model made of the problems."""

    subject: Subject
    rows: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Row id to that row's figures, at every k of the curves."""
    others: dict[str, float] = field(default_factory=dict[str, float])
    """Figures of all rows together that are no means over samples: exact ones, and those under seed tags."""
    dropped: int = 0
    """Problems left out because their prompts are too long for the settings."""
    abstained: int = 0
    """Samples on which every reward term abstained."""
    notes: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Watcher:
    """What is told while an evaluation goes on."""

    start: Callable[[Subject, int], None]
    """A model is ready, and has that many problems before it."""
    answered: Callable[[int], None]
    """So many more problems are answered."""
    write_rows: Callable[[Sequence[Mapping[str, Any]]], None]
    """The records of the rows just answered."""


class _Notes(QuietWriter):
    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def write_note(self, message: str) -> None:
        """Keep it for the result."""
        self._notes.append(message)


def curve_ks(num_samples: int, ks: Sequence[int]) -> list[int]:
    """The k of the curves: powers of two, the number of samples, and those asked for."""
    powers = [2**power for power in range(num_samples.bit_length()) if 2**power <= num_samples]
    return sorted({*powers, num_samples, *ks})


def perform_evaluation(plan: EvaluationPlan, watcher: Watcher) -> list[Answers]:
    """Ask every model of the plan, in order.

    Raises:
        ConfigError, DataError, CheckpointError: found only now that the machine, the data or the weights are looked at.
    """
    task = build_task(plan.models[0].config.data)
    return [_ask(subject, task, _chosen(task, plan), watcher) for subject in plan.subjects]


def _chosen(task: Task, plan: EvaluationPlan) -> list[TaskRow]:
    """The problems of the split up to the limit; only these are made where rows are made on demand."""
    rows = task.eval_rows if plan.split is Split.eval else task.train_rows
    if not len(rows):
        raise DataError(f"split={plan.split}: the {task.name} task has no problems there")
    return [rows[at] for at in range(min(len(rows), plan.limit or len(rows)))]


def _ask(subject: Subject, task: Task, problems: list[TaskRow], watcher: Watcher) -> Answers:
    config, answers = subject.config, Answers(subject)
    ctx, rendered = validation_of(config, subject, task, problems, answers.notes)
    answers.dropped = rendered.num_dropped
    settings, rows = ctx.evaluation, ctx.evaluation.rows
    ks, exact = curve_ks(settings.num_samples, settings.ks), dict[str, dict[str, float]]()
    watcher.start(subject, len(rows))
    for at in range(0, len(rows), settings.batch_size):
        part = rows[at : at + settings.batch_size]
        sampled = evaluate_rows(ctx, part)
        greedy = [] if ctx.greedy_generator is None else sample_rows(ctx, ctx.greedy_generator, part, 1)
        exact |= {} if ctx.exact is None else exact_rows(ctx, ctx.exact, part)
        by_id = {row.row_id: row for row in greedy}
        for row in sampled:
            answers.rows[row.row_id] = _figures(row, by_id.get(row.row_id), ks)
            answers.abstained += sum(utility != utility for utility in row.utilities)
        watcher.write_rows([_record(subject, row, by_id.get(row.row_id), exact.get(row.row_id)) for row in sampled])
        watcher.answered(len(part))
        if ctx.exact is not None:
            ctx.exact.tables.clear()  # a row comes once
    if exact:
        answers.others |= {f"exact/{name}": value for name, value in summarise_exact(list(exact.values())).items()}
    if ctx.seeds is not None:
        tagged = summarise_seeds(answer_under_seeds(ctx, ctx.seeds, lambda row_id: True))
        answers.others |= {f"seed/{name}": value for name, value in tagged.items()}
    return answers


def _figures(row: EvaluatedRow, greedy: EvaluatedRow | None, ks: Sequence[int]) -> dict[str, float]:
    figures = row_figures(row, ks) if greedy is None else {GREEDY: float(greedy.right[0]), **row_figures(row, ks)}
    return figures | {
        "mean_length": sum(row.lengths) / len(row.lengths),
        "clipped_ratio": sum(row.truncated) / len(row.truncated),
    }


def _record(
    subject: Subject, row: EvaluatedRow, greedy: EvaluatedRow | None, exact: dict[str, float] | None
) -> dict[str, Any]:
    """A row's line: what a run records of it, and the samples themselves."""
    return {
        "model": subject.label,
        "step": subject.step,
        **row_record(row, greedy, exact),
        "prompt": row.prompt,
        "completions": row.completions,
        "right": row.right,
        "keys": row.keys,
        "lengths": row.lengths,
        "truncated": row.truncated,
    }


def validation_of(
    config: RootConfig, subject: Subject, task: Task, problems: Sequence[TaskRow], notes: list[str]
) -> tuple[ValidationContext, RenderedRows]:
    """The model with its weights, its samplers and the rendered problems: an evaluation's parts, without an optimiser.

    Raises:
        ConfigError, DataError, CheckpointError: the device, the model, the prompts or the weights cannot be used.
    """
    accelerator = make_accelerator(config)
    if accelerator.num_processes > 1:
        raise ConfigError(f"an evaluation of its own runs in one process, and here are {accelerator.num_processes}")
    handles = LoggingHandles(Path(config.run.dir), [_Notes(notes)])
    loaded = build_model(config.model, positions=longest_sequence(config))
    notes.extend(loaded.notes)
    render = row_renderer(config, loaded)
    rendered = render(problems)
    if subject.final_model is not None:
        load_model_weights(loaded.model, subject.final_model)
    elif subject.checkpoint is not None:
        restore_weights(config, loaded, subject.checkpoint, lambda: start_warm(config, task, loaded, handles))
    else:
        start_warm(config, task, loaded, handles)
        attach_adapter(loaded.model, config.model, config.seed)
    loaded.model.to(accelerator.device)
    generation = generation_settings(config.generation, loaded.tokenizer, task.answer_alphabet)
    scoring = scoring_settings(
        config.scoring, max_completion_len=generation.max_completion_len, reference=reference_source(config)
    )
    cache = PromptCache(loaded.tokenizer, scoring.batching.prompt_cache_size)
    scoring.batching.prompt_length_cache_get = cache
    runtime = _runtime(accelerator, loaded, cache)
    scorer = TokenScorer(
        sampled_distribution(runtime, generation), scoring.batching, None, False,
        padded=scoring.trl_reference_scoring, sharing=prompt_sharing(loaded.model, scoring, notes.append),
        head=separate_head(loaded.model, notes.append),
    )  # fmt: skip
    schedule = resolve_schedule(
        config.optimization, num_generations=generation.num_generations, num_prompts=len(task.train_rows)
    )
    parts = EvaluationParts(
        task, problems, render, partial(local_generator, runtime), scorer,
        runtime, build_rewards(config, task, rendered.rows), generation, evaluation_settings(config.evaluation, list(rendered.rows)),
        scoring, handles, state=TrainerState(global_step=subject.step or 0, max_steps=schedule.total_training_steps),
    )  # fmt: skip
    return build_validation(config.evaluation, parts), rendered


def _runtime(accelerator: Accelerator, loaded: LoadedModel, cache: PromptCache) -> RuntimeHandles:
    def no_reference() -> PreTrainedModel:
        raise AssertionError("an evaluation scores under no reference")

    return RuntimeHandles(
        accelerator=accelerator,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        train_loader=DataLoader(cast(Dataset[dict[str, Any]], [])),  # nothing is trained on
        train_sampler=None,
        device=accelerator.device,
        get_ref_model=no_reference,
        prompt_cache_get=cache,
    )

"""A run that is only looked at: everything is checked and counted; no weights are made and nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil
import torch
from torch import nn

from maxent_grpo.config.resolve import reference_source
from maxent_grpo.config.root import RootConfig
from maxent_grpo.models.build import LoadedModel, build_model
from maxent_grpo.models.demonstrations import tokenize_demonstration
from maxent_grpo.models.lora import attach_adapter
from maxent_grpo.tasks.base import Task
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.tokenize import RenderedRows
from maxent_grpo.telemetry.summary import startup_summary
from maxent_grpo.training.control.state import read_state
from maxent_grpo.training.loop import RunResult
from maxent_grpo.training.memory import MemoryEstimate
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.optim import resolve_schedule
from maxent_grpo.training.prepared_rows import prompt_text, render_all, rows_per_epoch, styled
from maxent_grpo.training.preview.sizes import Answers, Workload, memory_estimate, model_shape, parameter_counts
from maxent_grpo.training.preview.text import memory_rows, preview_text
from maxent_grpo.training.resume import find_resume
from maxent_grpo.training.settings import generation_settings, scoring_settings
from maxent_grpo.training.setup import build_rewards, facts, make_accelerator, run_from_config

LOOKED_AT = 64
"""Demonstrations whose lengths stand for all."""


def start(config: RootConfig, overrides: Sequence[str] = ()) -> RunResult:
    """Run a checked configuration; with `run.dry` print what it would do instead.

    Raises:
        ConfigError, DataError, CheckpointError: found only now that the machine, the data or a checkpoint is looked at.
    """
    if not config.run.dry:
        return run_from_config(config, overrides)
    print(preview(config), flush=True)
    return RunResult(Path(config.run.dir), 0, {}, {})


def preview(config: RootConfig) -> str:
    """Check what a run would check before its first step, and describe the run.

    Raises:
        ConfigError, DataError, CheckpointError: the run would stop before its first step.
    """
    resume = find_resume(config)
    if config.controller.paths.resume_from is not None:
        read_state(config.controller.paths.resume_from)
    accelerator = make_accelerator(config)
    task = build_task(config.data)
    loaded = outline(config)
    train, held_out = render_all(config, task, loaded)
    build_rewards(config, task)
    work = workload(config, task, loaded, train, held_out)
    resolve_method(
        work.scoring, score_mode=work.scoring.weighting.score_mode,
        max_completion_len=work.generation.max_completion_len,
    )  # fmt: skip
    shape = model_shape(loaded.model)
    on_gpu = accelerator.device.type == "cuda"
    estimate = memory_estimate(
        config, work, shape,
        process=process_memory(config), on_gpu=on_gpu, num_processes=accelerator.num_processes,
    )  # fmt: skip
    memory = memory_rows(estimate, available_memory(estimate), parameter_counts(loaded.model))
    return preview_text(
        startup_summary(config, facts(config, accelerator, task, loaded, train, held_out)),
        config, work, shape, memory, 0 if resume is None else resume.step, config.run.dir,
    )  # fmt: skip


def outline(config: RootConfig) -> LoadedModel:
    """The model with its tokenizer and adapter, its weights on the meta device: shapes and types without memory."""
    with torch.device("meta"):
        positions = config.generation.max_prompt_len + config.generation.max_completion_len
        loaded = build_model(config.model, positions=positions)
        attach_adapter(loaded.model, config.model, config.seed)
    return loaded


def workload(
    config: RootConfig, task: Task, loaded: LoadedModel, train: RenderedRows, held_out: RenderedRows
) -> Workload:
    """The settled settings and the lengths of the data."""
    generation = generation_settings(config.generation, loaded.tokenizer, task.answer_alphabet)
    return Workload(
        generation=generation,
        scoring=scoring_settings(
            config.scoring, max_completion_len=generation.max_completion_len, reference=reference_source(config)
        ),
        schedule=resolve_schedule(
            config.optimization, num_generations=generation.num_generations, num_prompts=rows_per_epoch(task, train)
        ),
        num_train=rows_per_epoch(task, train),
        train_lengths=train.lengths,
        eval_lengths=held_out.lengths,
        demonstrations=_answers(config, task, loaded),
    )


def process_memory(config: RootConfig) -> int:
    """Memory of this process, once it has loaded what a run loads: the libraries, the data, and what a first step brings in."""
    if config.logging.report:
        import maxent_grpo.report.picture  # noqa: F401 - a run draws them while it trains
    weight = nn.Parameter(torch.ones(1))
    weight.square().sum().backward()
    torch.optim.AdamW([weight]).step()
    return psutil.Process().memory_info().rss


def available_memory(estimate: MemoryEstimate) -> int:
    """What the device that holds the tensors has for this process, what it uses already included."""
    if not estimate.heap:
        return torch.cuda.mem_get_info()[0]
    return psutil.virtual_memory().available + psutil.Process().memory_info().rss


def _answers(config: RootConfig, task: Task, loaded: LoadedModel) -> Answers | None:
    """How many answers of what length stand behind one prompt in the supervised stage."""
    settings = getattr(config.model, "warm_start", None)
    if settings is None or not settings.enabled:
        return None
    shown = task.demonstrations(min(settings.num_problems, LOOKED_AT), settings.mode_skew, settings.seed)
    write = prompt_text(config, loaded.tokenizer)
    tokenized = [tokenize_demonstration(item, loaded.tokenizer, write) for item in styled(config, shown)]
    most = max(len(item.answers) for item in tokenized)
    drawn = min(settings.answers_per_problem, most) if settings.answers_per_problem else most
    return Answers(drawn, max(len(answer) for item in tokenized for answer in item.answers))

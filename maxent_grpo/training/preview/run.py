"""A run that is only looked at: everything is checked and counted; no weights are made and nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate import Accelerator
from torch import nn

from maxent_grpo.config.generation import ANSWER_ALPHABET
from maxent_grpo.config.resolve import reference_source
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import DeviceChoice
from maxent_grpo.launched import place
from maxent_grpo.models.adapter import parameters_text
from maxent_grpo.models.demonstrations import tokenize_demonstration
from maxent_grpo.tasks.base import Task
from maxent_grpo.telemetry.summary import startup_summary
from maxent_grpo.training.control.state import read_state
from maxent_grpo.training.loop import RunResult
from maxent_grpo.training.memory import MemoryEstimate
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.optim import resolve_schedule
from maxent_grpo.training.prepared_rows import prompt_text, rows_per_epoch, styled
from maxent_grpo.training.preview.sight import Sight, gpu_is_elsewhere, look
from maxent_grpo.training.preview.sizes import Answers, Workload, memory_estimate, model_shape, parameter_counts
from maxent_grpo.training.preview.text import memory_rows, preview_text
from maxent_grpo.training.resume import find_resume
from maxent_grpo.training.reward_terms import build_rewards
from maxent_grpo.training.run_facts import facts
from maxent_grpo.training.settings import generation_settings, scoring_settings
from maxent_grpo.training.setup import make_accelerator, run_from_config
from maxent_grpo.training.types.runtime import GenerationSettings

LOOKED_AT = 64
"""Demonstrations whose lengths stand for all."""


def start(config: RootConfig, overrides: Sequence[str] = (), *, started: float | None = None) -> RunResult:
    """Run a checked configuration; with `run.dry` print what it would do instead. ``run.max_hours`` counts from ``started``.

    Raises:
        ConfigError, DataError, CheckpointError: found only now that the machine, the data or a checkpoint is looked at.
    """
    if not config.run.dry:
        return run_from_config(config, overrides, started=started)
    described = preview(config)
    if place().is_main:
        print(described, flush=True)
    return RunResult(Path(config.run.dir), 0, {}, {})


def preview(config: RootConfig) -> str:
    """Check what a run would check before its first step, and describe the run.

    Raises:
        ConfigError, DataError, CheckpointError: the run would stop before its first step.
    """
    resume = find_resume(config)
    if config.controller.paths.resume_from is not None:
        read_state(config.controller.paths.resume_from)
    elsewhere = gpu_is_elsewhere(config)
    here = replace(config, run=replace(config.run, device=DeviceChoice.cpu)) if elsewhere else config
    accelerator = make_accelerator(here)
    sight = look(config)
    if sight.task is not None:
        build_rewards(config, sight.task, [] if sight.train is None else sight.train.rows)
    work = workload(config, sight)
    resolve_method(
        work.scoring, score_mode=work.scoring.weighting.score_mode,
        max_completion_len=work.generation.max_completion_len,
    )  # fmt: skip
    shape = model_shape(sight.model)
    estimate = memory_estimate(
        config, work, shape,
        process=process_memory(config), on_gpu=elsewhere or accelerator.device.type == "cuda",
        num_processes=accelerator.num_processes,
    )  # fmt: skip
    memory = memory_rows(estimate, None if elsewhere else available_memory(estimate), parameter_counts(sight.model))
    known = known_facts(config, accelerator, sight)
    if elsewhere:
        known["device"] = "cuda, of which this machine has none"
    return preview_text(
        startup_summary(config, known), config, work, shape, memory, 0 if resume is None else resume.step, sight.unseen
    )


def known_facts(config: RootConfig, accelerator: Accelerator, sight: Sight) -> dict[str, Any]:
    """What is known of the run, for the start-up summary; less where less could be seen."""
    if sight.task is not None and sight.loaded is not None and sight.train is not None and sight.held_out is not None:
        return facts(config, accelerator, sight.task, sight.loaded, sight.train, sight.held_out)
    task = sight.task
    return {
        "train_rows": None if task is None else len(task.train_rows),
        "eval_rows": None if task is None else len(task.eval_rows),
        "num_processes": accelerator.num_processes,
        "device": str(accelerator.device),
        "parameters": parameters_text(sight.model),
        "directory": config.run.dir,
    }


def workload(config: RootConfig, sight: Sight) -> Workload:
    """The settled settings and the lengths of the data."""
    task, train, held_out = sight.task, sight.train, sight.held_out
    generation = _generation(config, sight)
    limit, rows = config.generation.max_prompt_len, None
    if task is not None:
        rows = len(task.train_rows) if train is None else rows_per_epoch(task, train)
    return Workload(
        generation=generation,
        scoring=scoring_settings(
            config.scoring, max_completion_len=generation.max_completion_len, reference=reference_source(config)
        ),
        schedule=resolve_schedule(config.optimization, num_generations=generation.num_generations, num_prompts=rows),
        num_train=rows or 0,
        train_lengths=[limit] if train is None else train.lengths,
        # of unread held-out rows as many as are sampled together count, for the memory that takes
        eval_lengths=held_out.lengths if held_out is not None else [limit] * _num_held_out(config, task),
        demonstrations=_answers(config, sight),
        has_rows=task is not None,
        has_lengths=train is not None,
    )


def _num_held_out(config: RootConfig, task: Task | None) -> int:
    return config.evaluation.batch_size if task is None else len(task.eval_rows)


def _generation(config: RootConfig, sight: Sight) -> GenerationSettings:
    """Sampling settings; without a tokenizer, allowed tokens cannot be looked up and all count as allowed."""
    alphabet = None if sight.task is None else sight.task.answer_alphabet
    if sight.tokenizer is not None:
        return generation_settings(config.generation, sight.tokenizer, alphabet)
    settings = config.generation
    if settings.allowed_tokens and (settings.allowed_tokens != [ANSWER_ALPHABET] or alphabet is not None):
        sight.unseen.append(("allowed tokens", "not looked up without a tokenizer; all count as allowed"))
    return generation_settings(replace(settings, allowed_tokens=[]), None, None)


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
    if estimate.on_gpu:
        return torch.cuda.mem_get_info()[0]
    return psutil.virtual_memory().available + psutil.Process().memory_info().rss


def _answers(config: RootConfig, sight: Sight) -> Answers | None:
    """How many answers of what length stand behind one prompt in the supervised stage."""
    settings, task, loaded = config.model.warm_start, sight.task, sight.loaded
    if not settings.enabled or task is None or loaded is None:
        return None
    shown = task.demonstrations(min(settings.num_problems, LOOKED_AT), settings.mode_skew, settings.seed)
    write = prompt_text(config, loaded.tokenizer)
    tokenized = [tokenize_demonstration(item, loaded.tokenizer, write) for item in styled(config, shown)]
    most = max(len(item.answers) for item in tokenized)
    drawn = min(settings.answers_per_problem, most) if settings.answers_per_problem else most
    return Answers(drawn, max(len(answer) for item in tokenized for answer in item.answers))

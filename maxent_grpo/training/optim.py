"""The optimiser: built from settings, applied once per optimiser step behind a guard against non-finite gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from maxent_grpo.config.optimization import AdamWConfig, OptimizationConfig
from maxent_grpo.distributed import any_rank, gather_all
from maxent_grpo.errors import ConfigError, NonFiniteError
from maxent_grpo.objective.learning_rate import learning_rate_factor
from maxent_grpo.training.master_weights import MasterAdamW, needs_master, trained_parameters
from maxent_grpo.training.sharding import whole_tensor
from maxent_grpo.training.types.runtime import OptimizationSchedule, OptimizationSettings, OptimizerHandles


@dataclass(frozen=True)
class Update:
    """What the optimiser did at a step."""

    gradient_norm: float
    """Global norm before clipping."""
    learning_rate: float
    """Learning rate the step was taken with."""
    skipped: bool
    """Whether the gradient was exactly zero and the step was left out."""


def resolve_schedule(
    config: OptimizationConfig, *, num_generations: int, num_prompts: int | None
) -> OptimizationSchedule:
    """The schedule of a run over ``num_prompts`` training prompts (None for a stream), all numbers settled.

    total_training_steps > 0 wins; otherwise it is num_epochs * steps_per_epoch with
    steps_per_epoch = ceil(num_prompts / prompts_per_step).

    Raises:
        ConfigError: the warm-up is not shorter than the epochs asked for; of a given number of steps the gates know it.
    """
    steps_per_epoch = None if num_prompts is None else math.ceil(num_prompts / config.prompts_per_step)
    total = config.total_training_steps
    if total <= 0:
        assert steps_per_epoch is not None, "the configuration requires total_training_steps for a stream"
        total = config.num_epochs * steps_per_epoch
        if config.warmup_steps >= total:
            raise ConfigError(
                f"optimization.warmup_steps={config.warmup_steps} is not below the {total} steps that "
                f"optimization.num_epochs={config.num_epochs} makes of {num_prompts} prompts: the learning rate would never "
                f"reach its peak; use optimization.warmup_steps={total - 1} or less"
            )
    return OptimizationSchedule(
        num_epochs=config.num_epochs,
        num_generations=num_generations,
        grad_accum_steps=config.grad_accum_steps,
        max_grad_norm=config.max_grad_norm,
        steps_per_epoch=steps_per_epoch,
        total_training_steps=total,
        warmup_steps=config.warmup_steps,
        lr_scheduler_type=config.lr_scheduler_type,
        prompts_per_step=config.prompts_per_step,
        minibatches=config.minibatches,
        num_iterations=config.num_iterations,
    )


def schedule_line(optimization: OptimizationSettings) -> str:
    """The settled schedule in one sentence."""
    schedule, peak = optimization.schedule, optimization.handles.learning_rate
    asked = f" ({schedule.num_epochs} epochs of {schedule.steps_per_epoch})" if schedule.steps_per_epoch else ""
    return (
        f"{schedule.total_training_steps} optimiser steps{asked}, each of {schedule.prompts_per_step} prompts with "
        f"{schedule.num_generations} completions; learning rate {peak:g} after {schedule.warmup_steps} steps of warm-up, "
        f"then {schedule.lr_scheduler_type}"
    )


def adamw(
    config: OptimizationConfig, model: nn.Module, kind: type[torch.optim.AdamW] | None = None
) -> torch.optim.AdamW:
    """AdamW over the model's trainable parameters; by default one with float32 copies of those that have fewer bits."""
    assert isinstance(config, AdamWConfig)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if kind is None:
        kind = MasterAdamW if any(map(needs_master, parameters)) else torch.optim.AdamW
    return kind(
        parameters,
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
    )


def optimizer_handles(
    config: OptimizationConfig,
    schedule: OptimizationSchedule,
    base: torch.optim.Optimizer,
    prepared: torch.optim.Optimizer,
) -> OptimizerHandles:
    """An optimiser, as it is and as accelerate prepared it, with its learning-rate schedule."""
    factor = learning_rate_factor(
        schedule.lr_scheduler_type,
        warmup=schedule.warmup_steps,
        total=schedule.total_training_steps,
        peak=config.learning_rate,
    )
    scheduler = LambdaLR(base, factor)
    return OptimizerHandles(prepared, scheduler, base, config.learning_rate)


def set_learning_rate(handles: OptimizerHandles) -> None:
    """Put the optimiser on the schedule's curve, which a resumed run may have been given another length of."""
    schedule = handles.lr_scheduler
    assert isinstance(schedule, LambdaLR)
    for group, peak, factor in zip(
        handles.base_optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = peak * factor(schedule.last_epoch)


def backward(optimization: OptimizationSettings, accelerator: Accelerator, loss: Tensor) -> None:
    """Back-propagate a share of the step's loss.

    Each share is divided by step-global counts already, so gradients add up over slices and processes. Data-parallel
    training averages them over processes, which multiplying by their number undoes. Accumulation is the caller's:
    the accelerator is built with gradient_accumulation_steps = 1.
    """
    accelerator.backward(shared_loss(accelerator, loss))
    base = optimization.handles.base_optimizer
    if isinstance(base, MasterAdamW):
        base.collect()


def shared_loss(accelerator: Accelerator, loss: Tensor) -> Tensor:
    """What ``backward`` differentiates: the share, times the number of processes that the gradients are averaged over."""
    return loss * accelerator.num_processes if accelerator.num_processes > 1 else loss


Explain = Callable[[], str]
"""Says, after something was NaN or infinite on some process, what this process knows of where; empty for nothing."""


def apply_gradients(
    optimization: OptimizationSettings, accelerator: Accelerator, *, step: int, explain: Explain = str
) -> Update:
    """Clip, check and apply the accumulated gradient, advance the schedule, clear the gradient.

    Raises:
        NonFiniteError: the gradient is NaN or infinite on any process; parameters and moments are as before the step, and the
            gradient is gone. ``explain`` is asked where it comes from.
    """
    handles, schedule = optimization.handles, optimization.schedule
    learning_rate = float(handles.base_optimizer.param_groups[0]["lr"])
    limit = schedule.max_grad_norm if schedule.max_grad_norm > 0 else math.inf
    norm = float(_as_tensor(accelerator.clip_grad_norm_(trained_parameters(handles.base_optimizer), limit)))
    if any_rank(accelerator, not math.isfinite(norm)):
        handles.optimizer.zero_grad(set_to_none=True)
        raise _refusal(accelerator, step, "gradient norm", norm, explain)
    skipped = norm == 0.0 and optimization.skip_zero_signal
    if not skipped:
        handles.optimizer.step()
        if handles.lr_scheduler is not None:
            handles.lr_scheduler.step()
    handles.optimizer.zero_grad(set_to_none=True)
    return Update(norm, learning_rate, skipped)


def check_finite_loss(loss: Tensor, accelerator: Accelerator, *, step: int, explain: Explain = str) -> None:
    """Refuse a NaN or infinite loss before its gradient is used.

    Raises:
        NonFiniteError: on every process if it is so on any; ``explain`` is asked where it comes from.
    """
    if any_rank(accelerator, not bool(torch.isfinite(loss.detach()))):
        raise _refusal(accelerator, step, "loss", float(loss.detach()), explain)


def _refusal(accelerator: Accelerator, step: int, what: str, value: float, explain: Explain) -> NonFiniteError:
    """The same error on every process: what is wrong on which of them, and where that comes from."""
    wrong = not math.isfinite(value)
    found = gather_all(accelerator, (wrong, value, explain() if wrong else ""))
    parts = [
        f"process {rank}: {what} is {number}; the optimiser step was not taken{f'. {where}' if where else ''}"
        for rank, (is_wrong, number, where) in enumerate(found)
        if is_wrong
    ]
    return NonFiniteError(
        f"step {step}, {'; '.join(parts)}. Lower optimization.learning_rate, look at these completions and their rewards, or "
        "leave such steps out with run.on_nonfinite=skip."
    )


def _as_tensor(norm: Tensor | float | None) -> Tensor | float:
    assert norm is not None, "clip_grad_norm_ returns the norm"
    return whole_tensor(norm) if isinstance(norm, Tensor) else norm

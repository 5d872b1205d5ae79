"""What a process does in a step beyond its own slices, so that all processes take part in every exchange of gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from accelerate import Accelerator
from torch import Tensor

from maxent_grpo.distributed import gather_all
from maxent_grpo.training.master_weights import trained_parameters
from maxent_grpo.training.optim import backward, check_finite_loss
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.types.rewards import PromptCacheEntry, ScoreBatch
from maxent_grpo.training.types.runtime import TrainingLoopContext


def most_slices(accelerator: Accelerator, num_slices: int) -> int:
    """The largest number of slices that a process has; asked by all before the first slice."""
    return max(gather_all(accelerator, num_slices))


def complete_gradient(
    ctx: TrainingLoopContext, scorer: TokenScorer, tokens: ScoreBatch, num_slices: int, most: int, *, step: int
) -> None:
    """After a process's ``num_slices`` slices: passes with a loss of 0 until it has made ``most``, as every process does.

    Gradients are exchanged in every backward pass, so that a process with fewer slices, or with none, would let the others wait
    for ever. Where no process had a slice the gradient is zero, as if every group had been run.
    """
    accelerator, dtype = ctx.runtime.accelerator, next(ctx.runtime.model.parameters()).dtype
    tokens = tokens if tokens.total_sequences else _placeholder(tokens)
    useful = scorer.counters.work
    for _ in range(num_slices, most):
        chunks = scorer.assemble(tokens, RowRange(0, 1), dtype)
        loss = scorer.score(ctx.runtime.trained, chunks, tokens.completion_ids.shape[1]).logp.sum() * 0.0
        check_finite_loss(loss, accelerator, step=step)
        backward(ctx.optimization, accelerator, loss)
    scorer.counters.work = useful
    if most == 0:
        zero_gradient(trained_parameters(ctx.optimization.handles.base_optimizer))


def _placeholder(tokens: ScoreBatch) -> ScoreBatch:
    """One row of one token behind a prompt of one, for a process that has no row at all."""
    ids = torch.full((1, 1), tokens.pad_token_id, dtype=torch.long)
    prompt = PromptCacheEntry([tokens.pad_token_id], [1])
    return replace(
        tokens, prompt_entries=[prompt], completion_ids=ids, completion_attention_mask=torch.ones_like(ids, dtype=torch.bool),
        total_sequences=1, group_starts=(0,),
    )  # fmt: skip


def zero_gradient(parameters: Iterable[Tensor]) -> None:
    """A gradient of 0 for every parameter that the optimiser steps."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)

"""Rollouts of training rows outside the current step, and the policy gradient of their expected reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from maxent_grpo.distributed import any_rank, global_sum, raising
from maxent_grpo.objective.advantages import leave_one_out_advantages
from maxent_grpo.objective.logprobs import sequence_sum
from maxent_grpo.rewards.batch import TrainerState
from maxent_grpo.training.credit import grade_rollout, nothing_graded
from maxent_grpo.training.experience import rollout_tokens
from maxent_grpo.training.generation.rollout import collect_rollout
from maxent_grpo.training.generation.streams import batch_uniforms
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.types.generation import GENERATION_COUNTERS
from maxent_grpo.training.types.rewards import ScoreBatch
from maxent_grpo.training.types.runtime import GenerationFn, TrainingLoopContext
from maxent_grpo.training.types.samplers import VersionedSampler

STREAM = "meta"
"""Name of the random numbers that choose and answer held-out rows."""


@dataclass(frozen=True)
class HeldOutBatch:
    """Graded completions of held-out rows; N sequences, T tokens."""

    tokens: ScoreBatch
    advantages: Tensor
    """[N] r_i minus the mean of the other completions of its prompt; 0 where there is no reward."""
    num_sequences: float
    """Completions with a reward, over all processes."""
    mean_reward: float
    """Over those; nan without any."""


@dataclass(frozen=True)
class HeldOutRollouts:
    """Samples held-out rows with the policy as it is; what it draws depends on seed and step alone."""

    rows: Sequence[Mapping[str, Any]]
    generator: GenerationFn
    num_prompts: int
    seed: int

    def sample(self, ctx: TrainingLoopContext, step: int, exclude: set[str]) -> HeldOutBatch:
        """Answer ``num_prompts`` rows whose ids are not in ``exclude``, and grade the answers."""
        accelerator = ctx.runtime.accelerator
        chosen = self.choose(step, exclude)[accelerator.process_index :: accelerator.num_processes]
        if isinstance(self.generator, VersionedSampler):
            self.generator.policy_version = step
            self.generator.begin_rollout(step)
        # counters of their own: generation/* speaks about the rollouts that are trained on
        settings = replace(ctx.generation, generation_stats=dict.fromkeys(GENERATION_COUNTERS, 0))
        batch = collect_rollout(
            chosen, self.generator, settings, agree=partial(any_rank, accelerator), raise_together=raising(accelerator)
        )
        state = TrainerState(step, ctx.optimization.schedule.total_training_steps)
        if batch.prompts:
            graded = grade_rollout(batch, {row["row_id"]: row for row in chosen}, ctx.reward, state)
        else:  # of fewer prompts than processes some have none
            graded = nothing_graded(ctx.reward, settings.num_generations)
        tokens, valid, *_ = rollout_tokens(ctx, batch, graded)
        utilities = torch.tensor(graded.utilities, dtype=torch.float64).view_as(valid)
        count, total = global_sum(accelerator, [float(valid.sum()), float(utilities[valid].sum())])
        return HeldOutBatch(
            tokens,
            leave_one_out_advantages(utilities, valid).flatten(),
            count,
            total / count if count else float("nan"),
        )

    def choose(self, step: int, exclude: set[str]) -> list[Mapping[str, Any]]:
        """The rows with the smallest of one random number each, which is a function of seed, step and row."""
        allowed = [row for row in self.rows if row["row_id"] not in exclude]
        numbers = batch_uniforms(self.seed, f"{STREAM}-rows", step, [(row["row_id"], 0) for row in allowed], 1)[:, 0]
        return [allowed[place] for place in numbers.argsort(kind="stable")[: self.num_prompts]]


def held_out_objective(scorer: TokenScorer, model: nn.Module, batch: HeldOutBatch, piece: RowRange) -> Tensor:
    """A slice's share of M = -(1/N) sum_i A_i log pi(y_i), whose gradient estimates that of minus the expected reward."""
    dtype = next(model.parameters()).dtype
    width = batch.tokens.completion_ids.shape[1]
    logp = scorer.score(model, scorer.assemble(batch.tokens, piece, dtype), width).logp
    mask = batch.tokens.completion_attention_mask[piece.slice].to(logp.device)
    advantages = batch.advantages[piece.slice].to(logp)
    return -(advantages * sequence_sum(logp, mask)).sum() / batch.num_sequences

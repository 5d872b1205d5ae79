"""A rollout made ready for training: sampled, graded, scored where the method needs it, and cut into optimiser steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from maxent_grpo.distributed import any_rank
from maxent_grpo.objective.advantages import EQUAL_UTILITIES, group_spread
from maxent_grpo.objective.logprobs import sequence_score
from maxent_grpo.training.clock import PhaseClock
from maxent_grpo.training.credit import (
    GradedRollout,
    ScoredTokens,
    assign_credit,
    behaviour_sums,
    complete_rows,
    grade_rollout,
    valid_rows,
)
from maxent_grpo.training.generation.rollout import collect_rollout
from maxent_grpo.training.scoring.batch import (
    RowRange,
    build_score_batch,
    plan_slices,
    sampled_logp_tensor,
    tail_window,
)
from maxent_grpo.training.scoring.reference import (
    reference_from_tokens,
    score_reference,
    score_without_gradient,
)
from maxent_grpo.training.types.choices import BehaviorSource, EqualGroups, ReferenceSource, Truncation
from maxent_grpo.training.types.rewards import GenerationBatch, ReferenceLogprobs, RewardComputation, ScoreBatch
from maxent_grpo.training.types.runtime import (
    OptimizationSchedule,
    ScoringSettings,
    StepBatchInfo,
    StepResources,
    TrainingLoopContext,
)

Rows = Mapping[str, Mapping[str, Any]]


@dataclass
class Experience:
    """One rollout. P groups of G completions, N = P * G sequences in prompt-major order, T completion tokens."""

    batch: GenerationBatch
    graded: GradedRollout
    rewards: RewardComputation
    valid: Tensor
    """[P, G] rows with a reward that are not excluded."""
    complete: Tensor
    """[P, G] rows that ended by themselves."""
    tokens: ScoreBatch
    mask: Tensor
    """[N, T] tokens that are trained."""
    sampled_logp: Tensor
    """[N, T] log-probs as the sampler reported them."""
    sampled_known: Tensor
    """[N, T] where it reported one."""
    old_logp: Tensor | None
    """[N, T] the trainer's log-probs at rollout weights; None when the first pass of training gives them."""
    token_entropy_mean: Tensor | None
    """[N] mean token entropy at rollout weights, for the reward-side bonus."""
    behaviour_scores: Tensor | None
    """[P, G] sequence scores under the sampler [nats]; None where the method does not look at them."""
    reference: ReferenceLogprobs | None
    counted: Tensor
    """[P] groups that the loss and its denominators are made of."""
    portions: list[RowRange]
    """Groups of each optimiser step of one pass over the rollout."""
    epoch: int
    step_in_epoch: int
    policy_version: int
    """Optimiser step whose weights sampled it."""

    @property
    def group_size(self) -> int:
        """G."""
        return self.graded.group_size

    def rows(self, groups: RowRange) -> RowRange:
        """The sequences of some groups."""
        return RowRange(groups.first * self.group_size, groups.last * self.group_size)


def gather_experience(
    ctx: TrainingLoopContext, resources: StepResources, info: StepBatchInfo, rows: Rows, clock: PhaseClock, step: int
) -> Experience:
    """Sample y_1..y_G of each prompt, grade them, and score what the method needs at rollout weights."""
    with clock.phase("rollout"):
        batch, portions = _sample(ctx, resources, info)
    with clock.phase("reward"):
        graded = grade_rollout(batch, rows, ctx.reward)
    return build_experience(ctx, resources, batch, graded, portions, clock, info, policy_version=step)


def build_experience(
    ctx: TrainingLoopContext,
    resources: StepResources,
    batch: GenerationBatch,
    graded: GradedRollout,
    portions: list[RowRange],
    clock: PhaseClock,
    info: StepBatchInfo,
    *,
    policy_version: int,
    saved: Mapping[str, Any] | None = None,
) -> Experience:
    """Tensors, credit and scores of a graded rollout; ``saved`` brings back what was scored at rollout weights."""
    scoring = ctx.scoring
    with clock.phase("prepare"):
        tokens = build_score_batch(
            batch.prompts,
            batch.records,
            scoring.batching,
            pad_token_id=pad_token_id(ctx),
            max_prompt_len=ctx.generation.max_prompt_len,
        )
        valid = valid_rows(graded, scoring.truncation)
        complete = complete_rows(graded.records)
        mask = trained_tokens(tokens, valid.flatten(), complete, scoring.truncation)
        sampled_logp, sampled_known = sampled_logp_tensor(tokens, graded.records)
        pieces = plan_slices(tokens, RowRange(0, tokens.total_sequences), scoring.batching.max_tokens)

    if saved is not None:
        old_logp, entropy_mean = saved["old_logp"], saved["token_entropy_mean"]
    else:
        with clock.phase("old_policy"):
            old_logp, entropy_mean = _score_old(ctx, resources, tokens, mask, pieces)
    assert resources.method is not None
    method = resources.method
    with clock.phase("prepare"):
        scored = ScoredTokens(mask, sampled_logp, sampled_known)
        rewards = assign_credit(graded, scoring, method, scored, entropy_mean)
        behaviour = _behaviour_scores(scored, scoring).view_as(valid) if method.needs_behaviour_logp else None
        counted = counted_groups(rewards, valid, scoring.equal_groups)

    reference = None
    if scoring.reference_logprobs_source == ReferenceSource.model:
        with clock.phase("reference"):
            reference = _reference(ctx, resources, tokens, mask, pieces, saved)
    mask = mask & counted.repeat_interleave(graded.group_size).unsqueeze(-1)
    return Experience(
        batch, graded, rewards, valid, complete.view_as(valid), tokens, mask, sampled_logp, sampled_known,
        old_logp, entropy_mean, behaviour, reference, counted, portions, info.epoch, info.step_in_epoch, policy_version,
    )  # fmt: skip


def _behaviour_scores(tokens: ScoredTokens, scoring: ScoringSettings) -> Tensor:
    weighting = scoring.weighting
    lengths = tokens.mask.sum(dim=-1)
    return sequence_score(
        behaviour_sums(tokens), lengths, mode=weighting.score_mode, score_length=weighting.score_length
    )


def refresh_reference(ctx: TrainingLoopContext, resources: StepResources, experience: Experience) -> Experience:
    """The experience with reference log-probs of the reference as it is now."""
    pieces = plan_slices(
        experience.tokens, RowRange(0, experience.tokens.total_sequences), ctx.scoring.batching.max_tokens
    )
    return replace(experience, reference=_reference(ctx, resources, experience.tokens, experience.mask, pieces, None))


def trained_tokens(tokens: ScoreBatch, valid: Tensor, complete: Tensor, truncation: Truncation) -> Tensor:
    """[N, T] tokens that enter the loss: of valid rows, within the tail window, truncated rows as configured."""
    rows = valid & complete if truncation is Truncation.mask_loss else valid
    return tail_window(tokens.completion_attention_mask, tokens.score_tail_tokens) & rows.unsqueeze(-1)


def counted_groups(rewards: RewardComputation, valid: Tensor, equal_groups: EqualGroups) -> Tensor:
    """[P]: all groups, or those whose utilities differ as credit saw them."""
    if equal_groups is EqualGroups.keep:
        return torch.ones(len(valid), dtype=torch.bool)
    utilities = torch.tensor(rewards.credited_utils, dtype=torch.float64).view_as(valid)
    return group_spread(utilities, valid) > EQUAL_UTILITIES


def portion_ranges(num_prompts: int, schedule: OptimizationSchedule) -> list[RowRange]:
    """The prompts of each optimiser step of a rollout; the last step is smaller when sizes do not divide."""
    size = schedule.prompts_per_step
    return [RowRange(at, min(at + size, num_prompts)) for at in range(0, num_prompts, size)]


def loader_ranges(portion: RowRange, grad_accum_steps: int) -> list[RowRange]:
    """The loader batches of an optimiser step: ``grad_accum_steps`` nearly equal parts, none of them empty."""
    size = -(-len(portion) // grad_accum_steps)
    return [RowRange(at, min(at + size, portion.last)) for at in range(portion.first, portion.last, max(size, 1))]


def _sample(
    ctx: TrainingLoopContext, resources: StepResources, info: StepBatchInfo
) -> tuple[GenerationBatch, list[RowRange]]:
    schedule, accelerator = ctx.optimization.schedule, ctx.runtime.accelerator
    batches: list[GenerationBatch] = []
    portions: list[RowRange] = []
    kept = 0
    for portion in portion_ranges(len(info.batch), schedule):
        shard = info.batch[portion.slice][accelerator.process_index :: accelerator.num_processes]
        first = kept
        for part in loader_ranges(RowRange(0, len(shard)), schedule.grad_accum_steps):
            batch = collect_rollout(
                shard[part.slice], resources.generator, ctx.generation, agree=partial(any_rank, accelerator)
            )
            batches.append(batch)
            kept += len(batch.prompts)
        portions.append(RowRange(first, kept))
    return _joined(batches), portions


def _joined(batches: Sequence[GenerationBatch]) -> GenerationBatch:
    return GenerationBatch(
        prompts=[prompt for batch in batches for prompt in batch.prompts],
        answers=[answer for batch in batches for answer in batch.answers],
        grouped_completions=[group for batch in batches for group in batch.grouped_completions],
        grouped_ref_meta=[group for batch in batches for group in batch.grouped_ref_meta or []],
        grouped_completion_info=[group for batch in batches for group in batch.grouped_completion_info or []],
    )


def needs_old_scores(scoring: ScoringSettings, schedule: OptimizationSchedule) -> bool:
    """Whether the trainer's log-probs at rollout weights are needed before the first update.

    With one update per rollout the first training pass is at rollout weights and gives them itself.
    """
    from_sampler = scoring.behavior_logprobs_source in (BehaviorSource.sampler, BehaviorSource.vllm)
    corrected = from_sampler and scoring.mismatch.mode != "bypass"
    reused = schedule.steps_per_rollout > 1 and (not from_sampler or corrected)
    return reused or scoring.policy_entropy_bonus_coef > 0


def _score_old(
    ctx: TrainingLoopContext, resources: StepResources, tokens: ScoreBatch, mask: Tensor, pieces: list[RowRange]
) -> tuple[Tensor | None, Tensor | None]:
    if not needs_old_scores(ctx.scoring, ctx.optimization.schedule):
        return None, None
    assert resources.scorer is not None
    logp, entropy = score_without_gradient(resources.scorer, ctx.runtime.model, tokens, pieces)
    if entropy is None:
        return logp, None
    mask = mask.to(entropy.device)
    total = torch.where(mask, entropy, torch.zeros_like(entropy)).sum(dim=-1)
    return logp, total / mask.sum(dim=-1).clamp(min=1)


def _reference(
    ctx: TrainingLoopContext,
    resources: StepResources,
    tokens: ScoreBatch,
    mask: Tensor,
    pieces: list[RowRange],
    saved: Mapping[str, Any] | None,
) -> ReferenceLogprobs:
    if saved is not None:
        return reference_from_tokens(saved["reference_logp"], mask, ctx.scoring.weighting)
    assert resources.reference_scorer is not None
    return score_reference(
        resources.reference_scorer, ctx.runtime.get_ref_model, tokens, mask, pieces, ctx.scoring.weighting
    )


def pad_token_id(ctx: TrainingLoopContext) -> int:
    """The tokenizer's pad token."""
    pad = ctx.runtime.tokenizer.pad_token_id
    assert isinstance(pad, int), "setup refuses a tokenizer without a pad token"
    return pad

"""A rollout made ready for training: sampled, graded, scored where the method needs it, and cut into optimiser steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from maxent_grpo.distributed import any_rank, raising, together
from maxent_grpo.objective.advantages import EQUAL_UTILITIES, group_spread
from maxent_grpo.objective.logprobs import sequence_score
from maxent_grpo.rewards.batch import TrainerState
from maxent_grpo.training.clock import PhaseClock
from maxent_grpo.training.credit import (
    GradedRollout,
    Grading,
    ScoredTokens,
    assign_credit,
    behaviour_sums,
    complete_rows,
    nothing_graded,
    valid_rows,
)
from maxent_grpo.training.generation.rollout import collect_rollout
from maxent_grpo.training.group_order import gather_groups
from maxent_grpo.training.old_scores import EarlierScores, OldScores, score_groups, score_old
from maxent_grpo.training.sampled_groups import join_batches
from maxent_grpo.training.sampled_rollout import SampledRollout
from maxent_grpo.training.samplers import pad_token_id
from maxent_grpo.training.scoring.batch import (
    RowRange,
    build_score_batch,
    sampled_logp_tensor,
    tail_window,
)
from maxent_grpo.training.scoring.reference import reference_from_tokens
from maxent_grpo.training.types.choices import EqualGroups, ReferenceSource, Truncation
from maxent_grpo.training.types.rewards import (
    DrawingReport,
    GenerationBatch,
    ReferenceLogprobs,
    RewardComputation,
    ScoreBatch,
)
from maxent_grpo.training.types.runtime import (
    OptimizationSchedule,
    ScoringSettings,
    StepBatchInfo,
    StepResources,
    TrainingLoopContext,
)
from maxent_grpo.training.zero_signal import scored_groups

Rows = Mapping[str, Mapping[str, Any]]
Item = TypeVar("Item")


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
    measured: Tensor
    """[N, T] tokens of valid rows that credit and reference scores are made of, trained or not."""
    sampled_logp: Tensor
    """[N, T] log-probs as the sampler reported them."""
    sampled_known: Tensor
    """[N, T] where it reported one."""
    old_logp: Tensor | None
    """[N, T] the trainer's log-probs at the anchor, pi_old; None when the first pass of training gives them."""
    token_entropy_mean: Tensor | None
    """[N] mean token entropy at the anchor, for the reward-side bonus."""
    behaviour_scores: Tensor | None
    """[P, G] sequence scores under the sampler [nats]; None where the method does not look at them."""
    reference: ReferenceLogprobs | None
    counted: Tensor
    """[P] groups that the loss and its denominators are made of."""
    scored: Tensor
    """[P] groups that are run through the model; the gradient of the others is exactly zero."""
    portions: list[RowRange]
    """Groups of each optimiser step of one pass over the rollout."""
    places: list[int]
    """[P] where each group stands in the order of the rollout's rows; no two of all processes have the same."""
    epoch: int
    step_in_epoch: int
    policy_version: int
    """Optimiser step whose weights sampled it, but for the groups carried over."""
    anchor_version: int
    """Optimiser step after which it began to train; the weights of then, the anchor, are those that sampled it unless it was
    sampled ahead."""
    earlier_versions: list[int] = field(default_factory=list)
    """Optimiser steps whose weights sampled the first groups, where these were carried over and scored at those weights."""
    old_known: Tensor | None = None
    """[N] rows whose ``old_logp`` is there, the others being left to the first pass of training; None is all of them."""
    drawing: DrawingReport | None = None
    """How the prompts were drawn; None without dynamic sampling, and after a resume inside the rollout."""

    @property
    def group_size(self) -> int:
        """G."""
        return self.graded.group_size

    def rows(self, groups: RowRange) -> RowRange:
        """The sequences of some groups."""
        return RowRange(groups.first * self.group_size, groups.last * self.group_size)

    def oldest_version(self, groups: RowRange) -> int:
        """Optimiser step of the oldest weights that sampled one of some groups; where there are none, of this rollout's."""
        records = self.graded.records[self.rows(groups).slice]
        return min((record.policy_version for record in records), default=self.policy_version)

    def old_rows(self, rows: RowRange) -> Tensor:
        """[n] which of some rows have log-probs of the trainer in ``old_logp``."""
        if self.old_known is not None:
            return self.old_known[rows.slice]
        return torch.full((len(rows),), self.old_logp is not None)


def sample_rollout(
    ctx: TrainingLoopContext, resources: StepResources, info: StepBatchInfo, rows: Rows, clock: PhaseClock, step: int
) -> SampledRollout:
    """Sample y_1..y_G of each prompt with the weights of optimiser step ``step``, and grade them."""
    with clock.phase("rollout"):
        grading = Grading(rows, ctx.reward, trainer_state(ctx, info.epoch, step))
        batch, portions = sample_prompts(ctx, resources, info.batch, grading)
    with clock.phase("reward"):
        # of fewer prompts than processes some have none
        graded = grading.finish(batch) if batch.prompts else nothing_graded(ctx.reward, ctx.generation.num_generations)
    places = places_of(ctx, info.batch, batch.prompts)
    return SampledRollout((batch, graded), portions, places, info.epoch, info.step_in_epoch, step)


def ready_to_train(
    ctx: TrainingLoopContext, resources: StepResources, sampled: SampledRollout, clock: PhaseClock, step: int
) -> Experience:
    """The rollout with what the method needs scored at the weights of optimiser step ``step``, which are the current ones."""
    batch, graded = sampled.groups
    info = StepBatchInfo(sampled.epoch, sampled.step_in_epoch, [])
    experience = build_experience(
        ctx, resources, batch, graded, sampled.portions, clock, info, places=sampled.places,
        policy_version=sampled.version, anchor_version=step, earlier=sampled.earlier,
    )  # fmt: skip
    return replace(experience, drawing=sampled.drawing)


def trainer_state(ctx: TrainingLoopContext, epoch: int, step: int) -> TrainerState:
    """What reward functions learn of the progress, at a rollout before optimiser step ``step`` + 1."""
    return TrainerState(step, ctx.optimization.schedule.total_training_steps, float(epoch))


def build_experience(
    ctx: TrainingLoopContext,
    resources: StepResources,
    batch: GenerationBatch,
    graded: GradedRollout,
    portions: list[RowRange],
    clock: PhaseClock,
    info: StepBatchInfo,
    *,
    places: Sequence[int],
    policy_version: int,
    anchor_version: int,
    saved: Mapping[str, Any] | None = None,
    earlier: EarlierScores | None = None,
) -> Experience:
    """Tensors, credit and scores of a graded rollout; every process calls it, as credit compares the groups of all.

    ``saved`` brings back what was scored at the anchor, ``earlier`` what was scored of groups carried over.
    """
    scoring = ctx.scoring
    with clock.phase("prepare"):
        tokens, valid, complete, mask, measured = rollout_tokens(ctx, batch, graded)
        sampled_logp, sampled_known = sampled_logp_tensor(tokens, graded.records)

    old = None
    if saved is not None:
        old = OldScores(saved["old_logp"], saved["token_entropy_mean"], saved["old_known"])
    elif scoring.policy_entropy_bonus_coef > 0:  # credit depends on the entropy of every completion
        with clock.phase("old_policy"):
            old = score_old(ctx, resources, tokens, measured, earlier)
    assert resources.method is not None
    method = resources.method
    with clock.phase("prepare"):
        sampled = ScoredTokens(mask, measured, sampled_logp, sampled_known)
        entropy = None if old is None else old.token_entropy_mean
        behaviour = None
        if method.needs_behaviour_logp:  # which a sampler may have left out for one process alone
            scores = together(ctx.runtime.accelerator, partial(_behaviour_scores, sampled, scoring))
            behaviour = scores.view_as(valid)
        everywhere = partial(gather_groups, ctx.runtime.accelerator, places)
        rewards = assign_credit(graded, scoring, method, sampled, entropy, ctx.reward, everywhere)
        counted = counted_groups(rewards, valid, scoring.equal_groups)
        if saved is not None:
            scored = saved.get("scored", torch.ones_like(counted))  # all, in checkpoints that do not say
        else:
            scored = scored_groups(method, scoring, rewards, valid, complete.view_as(valid), counted, mask)
    if old is None:
        with clock.phase("old_policy"):
            old = score_old(ctx, resources, tokens, measured, earlier, scored)

    reference = None
    if scoring.reference_logprobs_source == ReferenceSource.model:
        with clock.phase("reference"):
            reference = _reference(ctx, resources, tokens, measured, scored, saved)
    mask = mask & counted.repeat_interleave(graded.group_size).unsqueeze(-1)
    return Experience(
        batch, graded, rewards, valid, complete, tokens, mask, measured, sampled_logp, sampled_known,
        old.logp, old.token_entropy_mean, behaviour, reference, counted, scored, portions, list(places),
        info.epoch, info.step_in_epoch, policy_version, anchor_version,
        saved["earlier_versions"] if saved is not None else (earlier.versions if earlier is not None else []), old.known,
    )  # fmt: skip


class RolloutTokens(NamedTuple):
    """The sequences of a rollout and what is trained of them."""

    tokens: ScoreBatch
    valid: Tensor
    """[P, G] rows with a reward that are not excluded."""
    complete: Tensor
    """[P, G] rows that ended by themselves."""
    mask: Tensor
    """[N, T] tokens that are trained."""
    measured: Tensor
    """[N, T] tokens that a completion's probability and entropy are made of, in truncated rows too whose loss is masked: these
    stay in their group's statistics."""


def rollout_tokens(ctx: TrainingLoopContext, batch: GenerationBatch, graded: GradedRollout) -> RolloutTokens:
    """The tensors of sampled and graded groups."""
    tokens = build_score_batch(
        batch.prompts,
        batch.records,
        ctx.scoring.batching,
        pad_token_id=pad_token_id(ctx.runtime.tokenizer),
        max_prompt_len=ctx.generation.max_prompt_len,
    )
    valid = valid_rows(graded, ctx.scoring.truncation)
    complete = complete_rows(graded.records)
    measured = measured_tokens(tokens, valid.flatten())
    mask = trained_tokens(measured, complete, ctx.scoring.truncation)
    return RolloutTokens(tokens, valid, complete.view_as(valid), mask, measured)


def _behaviour_scores(tokens: ScoredTokens, scoring: ScoringSettings) -> Tensor:
    weighting = scoring.weighting
    lengths = tokens.measured.sum(dim=-1)
    return sequence_score(
        behaviour_sums(tokens), lengths, mode=weighting.score_mode, score_length=weighting.score_length
    )


def refresh_reference(ctx: TrainingLoopContext, resources: StepResources, experience: Experience) -> Experience:
    """The experience with reference log-probs of the reference as it is now."""
    reference = _reference(ctx, resources, experience.tokens, experience.measured, experience.scored, None)
    return replace(experience, reference=reference)


def measured_tokens(tokens: ScoreBatch, valid: Tensor) -> Tensor:
    """[N, T] tokens that probabilities and entropies are made of: of valid rows [N], within the tail window."""
    return tail_window(tokens.completion_attention_mask, tokens.score_tail_tokens) & valid.unsqueeze(-1)


def trained_tokens(measured: Tensor, complete: Tensor, truncation: Truncation) -> Tensor:
    """[N, T] tokens that enter the loss: those that are measured, of truncated rows [N] as configured."""
    return measured & complete.unsqueeze(-1) if truncation is Truncation.mask_loss else measured


def prompts_per_rollout(schedule: OptimizationSchedule) -> int:
    """Prompts of a full rollout: those of all its optimiser steps in one pass."""
    return schedule.prompts_per_step * schedule.minibatches


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


def local_portions(items: Sequence[Item], ctx: TrainingLoopContext) -> list[Sequence[Item]]:
    """This process's part of what belongs to each optimiser step's prompts."""
    accelerator = ctx.runtime.accelerator
    return [
        items[portion.slice][accelerator.process_index :: accelerator.num_processes]
        for portion in portion_ranges(len(items), ctx.optimization.schedule)
    ]


def places_of(
    ctx: TrainingLoopContext, prompts: Sequence[Mapping[str, Any]], delivered: Sequence[str], first: int = 0
) -> list[int]:
    """The place of each delivered prompt among all ``prompts``, whose first one stands at ``first``.

    They come in the order in which this process asked for them, perhaps with gaps.
    """
    numbered = list(enumerate(prompts, start=first))
    asked = iter([entry for shard in local_portions(numbered, ctx) for entry in shard])
    return [next(place for place, row in asked if row["prompt"] is prompt) for prompt in delivered]


def local_loader_ranges(num_prompts: int, ctx: TrainingLoopContext) -> list[RowRange]:
    """The loader batches of this process's part of an optimiser step of ``num_prompts``, empty ones behind them.

    Processes whose parts differ by a prompt may have other numbers of batches, and all of them sample equally often.
    """
    accelerator, parts = ctx.runtime.accelerator, ctx.optimization.schedule.grad_accum_steps
    sizes = [len(range(rank, num_prompts, accelerator.num_processes)) for rank in range(accelerator.num_processes)]
    own = sizes[accelerator.process_index]
    most = max(len(loader_ranges(RowRange(0, size), parts)) for size in sizes)
    ranges = loader_ranges(RowRange(0, own), parts)
    return ranges + [RowRange(own, own)] * (most - len(ranges))


def sample_prompts(
    ctx: TrainingLoopContext,
    resources: StepResources,
    prompts: Sequence[dict[str, Any]],
    grading: Grading,
    *,
    required: bool = True,
) -> tuple[GenerationBatch, list[RowRange]]:
    """Completions of this process's part of some rows, and the groups of each optimiser step.

    ``grading`` is given each loader batch while the next one is sampled.
    """
    accelerator = ctx.runtime.accelerator
    agree = partial(any_rank, accelerator)
    batches: list[GenerationBatch] = []
    portions: list[RowRange] = []
    kept = 0
    steps = portion_ranges(len(prompts), ctx.optimization.schedule)
    for step, shard in zip(steps, local_portions(prompts, ctx), strict=True):
        first = kept
        for part in local_loader_ranges(len(step), ctx):
            batch = collect_rollout(
                shard[part.slice],
                resources.generator,
                ctx.generation,
                agree=agree,
                raise_together=raising(accelerator),
                required=required,
            )
            grading.add(batch)
            batches.append(batch)
            kept += len(batch.prompts)
        portions.append(RowRange(first, kept))
    joined, lookup = join_batches(batches), ctx.scoring.batching.prompt_length_cache_get
    assert lookup is not None, "setup gives the batching settings the prompt cache"
    for prompt, group in zip(joined.prompts, joined.records, strict=True):
        resources.sampled.add(lookup(prompt).length, [len(record.token_ids) for record in group])
    return joined, portions


def _reference(
    ctx: TrainingLoopContext,
    resources: StepResources,
    tokens: ScoreBatch,
    measured: Tensor,
    scored: Tensor,
    saved: Mapping[str, Any] | None,
) -> ReferenceLogprobs:
    """Of the scored groups; the others' log-probabilities are 0."""
    if saved is not None:
        logp = saved["reference_logp"]
    else:
        assert resources.reference_scorer is not None
        logp, _ = score_groups(resources.reference_scorer, ctx.runtime.get_ref_model(), tokens, scored)
    rows = scored.repeat_interleave(ctx.generation.num_generations)
    return reference_from_tokens(logp, measured, ctx.scoring.weighting, rows)

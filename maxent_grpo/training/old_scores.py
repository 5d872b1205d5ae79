"""The trainer's own log-probabilities pi_old, before anything is updated: at the weights that a rollout begins to train with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from maxent_grpo.training.scoring.batch import RowRange, select_groups
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.scoring.reference import score_without_gradient
from maxent_grpo.training.types.choices import BehaviorSource
from maxent_grpo.training.types.rewards import ScoreBatch
from maxent_grpo.training.types.runtime import (
    OptimizationSchedule,
    ScoringSettings,
    StepResources,
    TrainingLoopContext,
)


@dataclass(frozen=True)
class EarlierScores:
    """What was scored of a rollout's first groups, which older weights sampled, at those weights."""

    versions: list[int]
    """Optimiser step whose weights sampled each group."""
    logp: list[Tensor]
    """[G, T of the group] the trainer's log-probs of each group."""
    token_entropy_mean: list[Tensor] | None
    """[G] mean token entropies of each group; None where nothing asks for them."""


@dataclass(frozen=True)
class OldScores:
    """Scores at the weights that a rollout begins to train with; each None when nothing asks for it."""

    logp: Tensor | None
    """[N, T]"""
    token_entropy_mean: Tensor | None
    """[N]"""
    known: Tensor | None
    """[N] rows that are scored; None is all of them."""


def needs_old_scores(scoring: ScoringSettings, schedule: OptimizationSchedule) -> bool:
    """Whether the trainer's log-probs at rollout weights are needed before the first update.

    With one update per rollout the first training pass is at rollout weights and gives them itself. Groups carried over from
    an earlier rollout are another matter: they bring theirs.
    """
    from_sampler = scoring.behavior_logprobs_source in (BehaviorSource.sampler, BehaviorSource.vllm)
    corrected = from_sampler and scoring.mismatch.mode != "bypass"
    reused = schedule.steps_per_rollout > 1 and (not from_sampler or corrected)
    return reused or scoring.policy_entropy_bonus_coef > 0


def score_old(
    ctx: TrainingLoopContext,
    resources: StepResources,
    tokens: ScoreBatch,
    measured: Tensor,
    earlier: EarlierScores | None,
    scored: Tensor | None = None,
) -> OldScores:
    """The scores of the groups carried over, as they were taken, before those of the fresh rows, where these are needed.

    ``measured`` [N, T] are the tokens that mean entropies are taken over; ``scored`` [P] the groups that will be trained, and fresh
    rows of the others have 0.
    """
    first, last = 0 if earlier is None else sum(len(logp) for logp in earlier.logp), tokens.total_sequences
    needed = needs_old_scores(ctx.scoring, ctx.optimization.schedule) and first < last
    fresh_logp, fresh_entropy = (
        score_at_weights(ctx, resources, tokens, measured, RowRange(first, last), scored) if needed else (None, None)
    )
    if earlier is None or first == 0:
        return OldScores(fresh_logp, fresh_entropy, None)
    width = measured.shape[1]
    like = earlier.logp[0] if fresh_logp is None else fresh_logp
    logp = [pad(part, (0, width - part.shape[1])).to(like) for part in earlier.logp]
    if fresh_logp is None:
        rest = like.new_zeros(last - first, width)
        return OldScores(torch.cat([*logp, rest]), _joined_entropy(earlier, None), torch.arange(last) < first)
    return OldScores(torch.cat([*logp, fresh_logp]), _joined_entropy(earlier, fresh_entropy), None)


def _joined_entropy(earlier: EarlierScores, fresh: Tensor | None) -> Tensor | None:
    if earlier.token_entropy_mean is None:
        return None
    parts = earlier.token_entropy_mean
    return torch.cat(parts if fresh is None else [*(part.to(fresh) for part in parts), fresh])


def score_at_weights(
    ctx: TrainingLoopContext,
    resources: StepResources,
    tokens: ScoreBatch,
    measured: Tensor,
    rows: RowRange,
    scored: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs [n, T] and mean token entropies [n] of the rows of some groups under the policy as it is, without gradient.

    Groups that are not among ``scored`` [P] are left out: theirs are 0.
    """
    assert resources.scorer is not None
    starts = torch.tensor(tokens.group_starts)
    wanted = (starts >= rows.first) & (starts < rows.last)
    if scored is not None:
        wanted = wanted & scored
    logp, entropy = score_groups(resources.scorer, ctx.runtime.model, tokens, wanted)
    logp = logp[rows.slice]
    if entropy is None:
        return logp, None
    entropy, measured = entropy[rows.slice], measured[rows.slice].to(entropy.device)
    total = torch.where(measured, entropy, torch.zeros_like(entropy)).sum(dim=-1)
    return logp, total / measured.sum(dim=-1).clamp(min=1)


def score_groups(
    scorer: TokenScorer, model: PreTrainedModel, tokens: ScoreBatch, groups: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Log-probs and entropies [N, T] without gradient of the marked groups [P], 0 for the others."""
    size = tokens.total_sequences // max(len(groups), 1)
    part = select_groups(tokens, groups, size)
    if part.total_sequences == 0:
        nothing = torch.zeros(tokens.completion_ids.shape, device=next(model.parameters()).device)
        return nothing, None if scorer.entropy is None else nothing
    logp, entropy = score_without_gradient(scorer, model, part, scorer.plan(part))
    if part is tokens:
        return logp, entropy
    rows = groups.repeat_interleave(size).to(logp.device)

    def spread(values: Tensor) -> Tensor:
        everywhere = values.new_zeros((tokens.total_sequences, values.shape[1]))
        everywhere[rows] = values
        return everywhere

    return spread(logp), None if entropy is None else spread(entropy)

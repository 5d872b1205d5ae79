"""One optimiser step on made-up tensors, cut into any slices: what the training step does around ``compute_loss``.

Rows are prompt-major. Everything comes from a seed; the dtype is double unless a test asks otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from maxent_grpo.config.scoring import ScoringConfig
from maxent_grpo.config.store import OPTIONS as STORE
from maxent_grpo.objective.logprobs import sequence_score, sequence_sum
from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.objective.shaping import NO_KEY
from maxent_grpo.objective.weights import utility_log_q
from maxent_grpo.training.credit_rules import GroupFacts
from maxent_grpo.training.loss import SliceTargets, compute_loss
from maxent_grpo.training.method import Method, resolve_method
from maxent_grpo.training.targets import SequenceTargets, group_evidence, group_scores, sequence_targets
from maxent_grpo.training.types.choices import ScoreMode
from maxent_grpo.training.types.rewards import (
    AdvantageStats,
    LossScalarBundle,
    PromptCompletionBatch,
    QDistribution,
    ReferenceLogprobs,
    RewardComputation,
    RewardMoments,
    SequenceScores,
)
from maxent_grpo.training.types.runtime import BatchingSettings, ScoringSettings
from maxent_grpo.training.types.weighting import ControllerValues, WeightingSettings

OPTIONS: dict[str, type[ScoringConfig]] = {name: node for group, name, node in STORE if group == "scoring"}


def scoring_settings(config: ScoringConfig) -> ScoringSettings:
    """The settings that a scoring option of the configuration makes."""
    names = {field.name for field in dataclasses.fields(ScoringSettings)} - {"batching"}
    shared = {name: getattr(config, name) for name in names}
    return ScoringSettings(batching=BatchingSettings(logprob_chunk_size=0, score_slice=0), **shared)


def settings_for(name: str, **changes: Any) -> ScoringSettings:
    """The settings of a method by its name, with some fields changed."""
    return dataclasses.replace(scoring_settings(OPTIONS[name]()), **changes)


@dataclass(frozen=True)
class Step:
    """The measured quantities of one optimiser step: [P, G] by group, [N, T] by token."""

    utilities: Tensor
    valid: Tensor
    complete: Tensor
    mask: Tensor
    logp: Tensor
    old_logp: Tensor
    reference_logp: Tensor
    sampled_logp: Tensor
    entropy: Tensor
    keys: Tensor

    @property
    def counts(self) -> StepCounts:
        """Step-global counts: valid rows, their tokens, all groups."""
        return StepCounts(float(self.valid.sum()), float(self.mask.sum()), float(self.utilities.shape[0]))

    @property
    def lengths(self) -> Tensor:
        """Trained tokens of each row [N]."""
        return self.mask.sum(dim=-1)

    def poisoned(self, value: float) -> Step:
        """The same step with ``value`` in the padding of every tensor of tokens."""
        tokens = ("logp", "old_logp", "reference_logp", "sampled_logp", "entropy")
        filled = {name: getattr(self, name).masked_fill(~self.mask, value) for name in tokens}
        return dataclasses.replace(self, **filled)

    def to(self, dtype: torch.dtype) -> Step:
        """The same step with its tokens in ``dtype``."""
        tokens = ("logp", "old_logp", "reference_logp", "sampled_logp", "entropy")
        return dataclasses.replace(self, **{name: getattr(self, name).to(dtype) for name in tokens})


def random_step(
    seed: int = 0, *, num_prompts: int = 4, group: int = 4, num_tokens: int = 6, drift: float = 0.3
) -> Step:
    """A step with mixed groups, an all-right, an all-wrong one, an invalid, a truncated and an empty completion."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    rows = num_prompts * group
    utilities = (torch.rand(num_prompts, group, generator=generator) < 0.5).double()
    utilities[0] = torch.tensor([1.0, 0.0, 0.25, 1.0], dtype=torch.float64)[:group]
    utilities[1], utilities[2] = 1.0, 0.0
    valid = torch.ones(num_prompts, group, dtype=torch.bool)
    valid[0, 2] = False
    utilities[0, 2] = torch.nan
    complete = torch.ones(num_prompts, group, dtype=torch.bool)
    complete[3, 1] = False
    lengths = torch.randint(1, num_tokens + 1, (rows,), generator=generator)
    lengths[5] = 0
    mask = (torch.arange(num_tokens) < lengths.unsqueeze(-1)) & valid.view(-1, 1)
    logp = -normal(rows, num_tokens).abs() - 0.05
    return Step(
        utilities=utilities,
        valid=valid,
        complete=complete,
        mask=mask,
        logp=logp,
        old_logp=logp + drift * normal(rows, num_tokens),
        reference_logp=logp + 0.5 * normal(rows, num_tokens),
        sampled_logp=logp + drift * normal(rows, num_tokens),
        entropy=normal(rows, num_tokens).abs(),
        keys=torch.randint(-1, 3, (num_prompts, group), generator=generator),
    )


def reward_computation(step: Step, method: Method, weighting: WeightingSettings) -> RewardComputation:
    """Credit of the step as the types carry it: advantages and q by group."""
    utilities, valid, facts = step.utilities, step.valid, group_facts(step, weighting)
    shaped = utilities if method.shape is None else method.shape(utilities, facts)
    advantages = torch.zeros_like(utilities) if method.advantages is None else method.advantages(shaped, facts)
    if method.row_weights is not None:
        advantages = advantages * method.row_weights(advantages, facts)
    log_q = utility_log_q(shaped, valid, temperature=weighting.q_temperature, epsilon=weighting.q_epsilon)
    q = log_q.exp()
    known = utilities[valid]
    size = utilities.numel()
    return RewardComputation(
        total_utils=utilities.flatten().tolist(),
        per_reward_values={"reward": utilities.flatten().tolist()},
        advantage=AdvantageStats(advantages.tolist(), advantages.flatten().tolist()),
        pairs=PromptCompletionBatch(["x"] * size, ["y"] * size),
        q_distribution=QDistribution(q.tolist(), q.flatten().tolist()),
        moments=RewardMoments(float(known.mean()), float(known.std(correction=0)))
        if len(known)
        else RewardMoments(0, 0),
        shaped_utils=None if method.shape is None else shaped.flatten().tolist(),
    )


def group_facts(step: Step, weighting: WeightingSettings) -> GroupFacts:
    """What the credit rules may look at."""
    lengths = step.lengths.view_as(step.valid)
    total = sequence_sum(step.sampled_logp, step.mask).view_as(step.utilities)
    right = step.utilities >= weighting.right_threshold
    return GroupFacts(step.valid, lengths, lengths, step.keys, right, total / lengths.clamp(min=1))


def plain_facts(valid: Tensor) -> GroupFacts:
    """Facts of completions of which nothing is known but whether they count: one token each, answers all different."""
    ones, keys = torch.ones_like(valid, dtype=torch.long), torch.full_like(valid, NO_KEY, dtype=torch.long)
    return GroupFacts(valid, ones, ones, keys, valid, None)


def reference_scores(step: Step, weighting: WeightingSettings, score_mode: ScoreMode) -> ReferenceLogprobs:
    """Reference scores in the same mode as the policy's."""
    raw = sequence_sum(step.reference_logp, step.mask)
    score = sequence_score(raw, step.lengths, mode=score_mode, score_length=weighting.score_length)
    per_token = float((raw / step.lengths.clamp(min=1)).mean())
    return ReferenceLogprobs(score, step.lengths, raw, per_token, float(step.lengths.double().mean()))


def targets_of(step: Step, method: Method, weighting: WeightingSettings, score_mode: ScoreMode) -> SequenceTargets:
    """Advantages and weights of every group, with tau and beta as the settings give them."""
    rewards, reference = reward_computation(step, method, weighting), reference_scores(step, weighting, score_mode)
    sampled = sequence_sum(step.sampled_logp, step.mask)
    behaviour = sequence_score(sampled, step.lengths, mode=score_mode, score_length=weighting.score_length)
    evidence = group_evidence(
        rewards, step.valid, step.complete, reference, weighting, behaviour.double().view_as(step.utilities)
    )
    values = ControllerValues(tau=weighting.tau, beta=weighting.beta, kl_beta=0.0)
    return sequence_targets(rewards, evidence, weighting, values, soft=method.soft)


def slice_targets(
    step: Step, method: Method, targets: SequenceTargets, weighting: WeightingSettings, score_mode: ScoreMode
) -> SliceTargets:
    """The targets of all rows, with the listwise value and slope of whole groups spread over their rows."""
    group = targets.group_size
    totals = sequence_sum(step.logp, step.mask)
    term = method.group_loss(targets, group_scores(totals, step.lengths, weighting, score_mode, group))
    taken = targets.listwise_valid
    share = taken.double() / taken.sum(dim=-1, keepdim=True).clamp(min=1)
    dtype = step.logp.dtype
    return SliceTargets(
        advantages=targets.advantages.flatten().to(dtype),
        reference_logp=step.reference_logp,
        sampled_logp=step.sampled_logp,
        listwise_value=term.value.repeat_interleave(group).to(dtype) / group,
        listwise_coefficient=term.coefficient.flatten().to(dtype),
        weights=targets.log_weights.exp().flatten().to(dtype),
        weight_baseline=share.flatten().to(dtype),
    )


def rows_of(targets: SliceTargets, rows: slice) -> SliceTargets:
    """The targets of some rows."""
    given = {field.name: getattr(targets, field.name) for field in dataclasses.fields(targets)}
    return dataclasses.replace(targets, **{name: value[rows] for name, value in given.items() if value is not None})


def scores_of(step: Step, logp: Tensor, rows: slice) -> SequenceScores:
    """Scores of some rows under the current policy, whose log-probabilities carry gradient."""
    mask, current, old = step.mask[rows], logp[rows], step.old_logp[rows]
    current_sum, old_sum = sequence_sum(current, mask), sequence_sum(old, mask)
    return SequenceScores(
        cur_logp_sum=current_sum,
        behavior_logp_sum=old_sum,
        log_ratio_train=current_sum.detach() - old_sum,
        denom_tok_tensor=mask.sum(dim=-1).clamp(min=1),
        token_logp=current,
        token_mask=mask,
        old_token_logp=old,
        token_entropy=step.entropy[rows] - current,
    )


@dataclass(frozen=True)
class StepResult:
    """A step's loss, its gradient on the log-probabilities [N, T], and the parts of each slice."""

    loss: Tensor
    gradient: Tensor
    parts: list[LossScalarBundle]

    def part(self, name: str) -> float:
        """One part of the loss summed over slices."""
        return sum(getattr(bundle, name) for bundle in self.parts)


def run_step(
    step: Step,
    settings: ScoringSettings,
    *,
    score_mode: ScoreMode = ScoreMode.sum,
    max_completion_len: int = 8,
    cuts: Sequence[int] = (),
    counts: StepCounts | None = None,
    targets: SliceTargets | None = None,
) -> StepResult:
    """Loss and gradient of a step whose rows are cut before each of ``cuts`` and back-propagated slice by slice."""
    method = resolve_method(settings, score_mode=score_mode, max_completion_len=max_completion_len)
    if targets is None:
        whole = targets_of(step, method, settings.weighting, score_mode)
        targets = slice_targets(step, method, whole, settings.weighting, score_mode)
    logp = step.logp.clone().requires_grad_()
    total, parts = torch.zeros((), dtype=step.logp.dtype), []
    edges = [0, *cuts, len(step.logp)]
    for first, last in pairwise(edges):
        rows = slice(first, last)
        output = compute_loss(
            scores_of(step, logp, rows),
            rows_of(targets, rows),
            method,
            settings.weighting,
            score_mode=score_mode,
            kl_beta=settings.kl_beta,
            counts=step.counts if counts is None else counts,
        )
        output.loss.backward()
        total = total + output.loss.detach()
        parts.append(output.scalars)
    assert logp.grad is not None
    return StepResult(total, logp.grad, parts)

"""One optimiser step on made-up tensors, cut into any slices: what the training step does around ``compute_loss``.

Rows are prompt-major. Everything comes from a seed; the dtype is double unless a test asks otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from maxent_grpo.config.scoring import ScoringConfig
from maxent_grpo.config.store import OPTIONS as STORE
from maxent_grpo.objective.logprobs import sequence_score, sequence_sum
from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.objective.shaping import NO_KEY
from maxent_grpo.training.credit import GradedRollout, ScoredTokens, assign_credit
from maxent_grpo.training.credit_rules import GroupFacts
from maxent_grpo.training.loss import SliceTargets, compute_loss
from maxent_grpo.training.method import Method, resolve_method
from maxent_grpo.training.targets import SequenceTargets, group_evidence, group_scores, sequence_targets
from maxent_grpo.training.token_selection import TokenChoice, choose_tokens, step_tokens
from maxent_grpo.training.types.choices import FinishReason, ScoreMode
from maxent_grpo.training.types.credit import TokenSelectionSettings
from maxent_grpo.training.types.rewards import (
    CompletionRecord,
    LossScalarBundle,
    PromptCompletionBatch,
    ReferenceLogprobs,
    RewardComputation,
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


def _selection(name: str) -> dict[str, TokenSelectionSettings]:
    kind = OPTIONS[name]().token_selection.kind
    return {"token_selection": TokenSelectionSettings(kind, share=0.1, covariance_low=0.05)}


FOR_FEW_ROWS: dict[str, dict[str, Any]] = {
    "passk": {"pass_k": 2},
    "clip_cov": _selection("clip_cov"),
    "kl_cov": _selection("kl_cov"),
}
"""Settings with which a method acts on groups of four and some fifty tokens; the defaults are made for thousands."""


def settings_for(name: str, **changes: Any) -> ScoringSettings:
    """The settings of a method by its name, suited to few rows, with some fields changed."""
    return dataclasses.replace(scoring_settings(OPTIONS[name]()), **(FOR_FEW_ROWS.get(name, {}) | changes))


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
    """Token entropy plus the log-probability; see ``scores_of``."""
    keys: Tensor
    priority: Tensor
    """Uniform numbers, one per token."""

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
    utilities[3] = torch.tensor([1.0, 0.0, 0.0, 0.5], dtype=torch.float64)[:group]
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
        priority=torch.rand(rows, num_tokens, dtype=torch.float64, generator=generator),
    )


def reward_computation(step: Step, method: Method, weighting: WeightingSettings) -> RewardComputation:
    """Credit of the step, as the package assigns it to a graded rollout."""
    utilities = step.utilities.masked_fill(~step.valid, torch.nan).flatten().tolist()
    lengths, complete = step.lengths.tolist(), step.complete.flatten().tolist()
    finish = [FinishReason.eos if ended else FinishReason.length for ended in complete]
    answers = [None if key == NO_KEY else str(key) for key in step.keys.flatten().tolist()]
    graded = GradedRollout(
        pairs=PromptCompletionBatch(["x"] * len(lengths), ["y"] * len(lengths)),
        records=[CompletionRecord("x", [0] * n, None, how, 0) for n, how in zip(lengths, finish, strict=True)],
        group_size=step.utilities.shape[1],
        utilities=utilities,
        per_term={"reward": utilities},
        metadata=[{"mode": answer, "key": answer} for answer in answers],
        abstentions=0,
    )
    tokens = ScoredTokens(step.mask, step.mask, step.sampled_logp, step.mask)
    return assign_credit(graded, settings_for("dr_grpo", weighting=weighting), method, tokens)


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


def behaviour_logp(step: Step, method: Method) -> Tensor:
    """Denominators of the ratios [N, T]."""
    return step.sampled_logp if method.ratio_from_sampler else step.old_logp


@cache
def _accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def choice_of(step: Step, method: Method, settings: ScoringSettings, advantages: Tensor) -> TokenChoice | None:
    """The tokens that train, chosen over the whole step as the training step does it; None where all do."""
    if method.selection is None:
        return None
    tokens = step_tokens(
        step.logp, behaviour_logp(step, method), advantages.flatten(), step.entropy - step.logp,
        step.priority.numpy(), step.mask,
    )  # fmt: skip
    return choose_tokens(_accelerator(), method, settings.clipping, tokens, step.mask)


def slice_targets(
    step: Step,
    method: Method,
    targets: SequenceTargets,
    weighting: WeightingSettings,
    score_mode: ScoreMode,
    choice: TokenChoice | None = None,
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
        trained_tokens=choice.trained if choice else None,
        held_tokens=choice.held if choice else None,
    )


def rows_of(targets: SliceTargets, rows: slice) -> SliceTargets:
    """The targets of some rows."""
    given = {field.name: getattr(targets, field.name) for field in dataclasses.fields(targets)}
    return dataclasses.replace(targets, **{name: value[rows] for name, value in given.items() if value is not None})


def scores_of(
    step: Step, logp: Tensor, rows: slice, *, old_logp: Tensor | None = None, entropy: Tensor | None = None
) -> SequenceScores:
    """Scores of some rows under the current policy, whose log-probabilities carry gradient.

    Without ``entropy`` [N, T] a made-up one takes its place, ``step.entropy`` - log pi.
    """
    mask, current, old = step.mask[rows], logp[rows], (step.old_logp if old_logp is None else old_logp)[rows]
    current_sum, old_sum = sequence_sum(current, mask), sequence_sum(old, mask)
    return SequenceScores(
        cur_logp_sum=current_sum,
        behavior_logp_sum=old_sum,
        log_ratio_train=current_sum.detach() - old_sum,
        denom_tok_tensor=mask.sum(dim=-1).clamp(min=1),
        token_logp=current,
        token_mask=mask,
        old_token_logp=old,
        token_entropy=(step.entropy[rows] - current) if entropy is None else entropy[rows],
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
    counts = step.counts._replace(slices=len(cuts) + 1) if counts is None else counts
    if targets is None:
        whole = targets_of(step, method, settings.weighting, score_mode)
        choice = choice_of(step, method, settings, whole.advantages)
        if choice is not None and settings.token_selection.count_kept_only:
            counts = counts._replace(tokens=choice.kept)
        targets = slice_targets(step, method, whole, settings.weighting, score_mode, choice)
    logp = step.logp.clone().requires_grad_()
    total, parts = torch.zeros((), dtype=step.logp.dtype), []
    for first, last in pairwise([0, *cuts, len(step.logp)]):
        rows = slice(first, last)
        output = compute_loss(
            scores_of(step, logp, rows, old_logp=behaviour_logp(step, method)),
            rows_of(targets, rows),
            method,
            settings.weighting,
            score_mode=score_mode,
            kl_beta=settings.kl_beta,
            counts=counts,
        )
        output.loss.backward()
        total = total + output.loss.detach()
        parts.append(output.scalars)
    assert logp.grad is not None
    return StepResult(total, logp.grad, parts)

"""From completions to credit: rewards, utilities, advantages A_i and the utility distribution q_i of every group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict

import torch
from torch import Tensor

from maxent_grpo.errors import GenerationError
from maxent_grpo.objective.aggregation import answer_entropy
from maxent_grpo.objective.shaping import NO_KEY
from maxent_grpo.rewards.batch import RewardBatch, TrainerState, columns_of, conversations_of
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.terms import TermVerdict
from maxent_grpo.rewards.workers import Asking
from maxent_grpo.training.credit_rules import GroupFacts
from maxent_grpo.training.generation.helpers import flatten_prompt_completions, flatten_ref_metadata
from maxent_grpo.training.group_credit import CreditEvidence, group_credit
from maxent_grpo.training.group_order import Own
from maxent_grpo.training.method import Method
from maxent_grpo.training.types.choices import FinishReason, RowWeighting, Truncation
from maxent_grpo.training.types.rewards import (
    AdvantageStats,
    CompletionRecord,
    GenerationBatch,
    PromptCompletionBatch,
    QDistribution,
    RewardComputation,
)
from maxent_grpo.training.types.runtime import RewardSpec, ScoringSettings


@dataclass
class GradedRollout:
    """A rollout's completions with every term's verdict, prompt-major; nothing yet compared within groups."""

    pairs: PromptCompletionBatch
    records: list[CompletionRecord]
    group_size: int
    utilities: list[float]
    """Weighted sum of the terms, terms that abstain left out; nan where all abstain."""
    per_term: dict[str, list[float]]
    """Value of each term; nan where it abstains."""
    metadata: list[dict[str, Any]]
    """Per completion: its record, mode, key and reason; the terms that failed on it, and the columns that terms logged."""
    abstentions: int
    """Term values of None."""
    logged: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Numbers that reward functions logged, by name."""


def grade_rollout(
    batch: GenerationBatch,
    rows: Mapping[str, Mapping[str, Any]],
    reward: RewardSpec,
    state: TrainerState | None = None,
) -> GradedRollout:
    """Ask every reward term about every completion and add them up: u_i = sum of weight * value.

    ``state`` is what reward functions learn of the run's progress.

    Raises:
        RewardError: a term misbehaved; see ``RewardTerm``.
    """
    return Grading(rows, reward, state or TrainerState()).finish(batch)


class Grading:
    """Rewards of a rollout that is sampled in parts: with processes that reward, those of a part are begun at once."""

    def __init__(self, rows: Mapping[str, Mapping[str, Any]], reward: RewardSpec, state: TrainerState) -> None:
        self._rows, self._reward, self._state = rows, reward, state

    def add(self, part: GenerationBatch) -> None:
        """A part of the rollout, in its order."""
        if part.prompts and self._reward.workers is not None:
            self._asking.add(_reward_batch(part, self._rows, self._state))

    def finish(self, batch: GenerationBatch) -> GradedRollout:
        """The whole rollout, graded; see ``grade_rollout``."""
        verdicts = self._asking.verdicts(_reward_batch(batch, self._rows, self._state))
        return _graded(batch, verdicts, self._reward)

    @cached_property
    def _asking(self) -> Asking:
        return Asking(self._reward.reward_funcs, self._reward.workers)


def _reward_batch(batch: GenerationBatch, rows: Mapping[str, Mapping[str, Any]], state: TrainerState) -> RewardBatch:
    pairs, _ = flatten_prompt_completions(batch)
    records = [record for group in batch.records for record in group]
    asked = [rows[record.row_id] for record in records]
    ids = [record.token_ids for record in records]
    return RewardBatch(pairs.prompts, pairs.completions, ids, columns_of(asked), conversations_of(asked), state)


def _graded(batch: GenerationBatch, verdicts: Mapping[str, TermVerdict], reward: RewardSpec) -> GradedRollout:
    pairs, _ = flatten_prompt_completions(batch)
    records = [record for group in batch.records for record in group]
    payloads = flatten_ref_metadata(batch.grouped_completions, batch.grouped_ref_meta) or []
    graded = {name: verdict.grades for name, verdict in verdicts.items()}
    weights = dict(zip(graded, reward.reward_weights, strict=True))
    metadata = [
        {**(payload or {}), **_verdict([grades[n] for grades in graded.values()]), **_noted(verdicts, n)}
        for n, payload in enumerate(payloads)
    ]
    return GradedRollout(
        pairs=pairs,
        records=records,
        group_size=len(batch.grouped_completions[0]),
        utilities=[
            _utility({name: grades[n] for name, grades in graded.items()}, weights) for n in range(len(records))
        ],
        per_term={name: [math.nan if g is None else g.reward for g in grades] for name, grades in graded.items()},
        metadata=metadata,
        abstentions=sum(grade is None for grades in graded.values() for grade in grades),
        logged=_logged(verdicts),
    )


def nothing_graded(reward: RewardSpec, group_size: int) -> GradedRollout:
    """The verdicts on no completion at all, of a process that has none."""
    names = [term.name for term in reward.reward_funcs]
    return GradedRollout(PromptCompletionBatch([], [], []), [], group_size, [], {name: [] for name in names}, [], 0)


def valid_rows(graded: GradedRollout, truncation: Truncation) -> Tensor:
    """[P, G]: rows with a reward, without the truncated ones when those are excluded."""
    has_reward = torch.tensor([not math.isnan(value) for value in graded.utilities], dtype=torch.bool)
    if truncation is Truncation.exclude:
        has_reward &= complete_rows(graded.records)
    return has_reward.view(-1, graded.group_size)


def complete_rows(records: Sequence[CompletionRecord]) -> Tensor:
    """[N]: completions that ended by themselves rather than at the length limit."""
    return torch.tensor([record.finish_reason is not FinishReason.length for record in records], dtype=torch.bool)


@dataclass(frozen=True)
class ScoredTokens:
    """What credit may know of a rollout's tokens, [N, T]."""

    mask: Tensor
    """Tokens that are trained."""
    measured: Tensor
    """Tokens that a completion's probability is made of; see ``RolloutTokens``."""
    sampled_logp: Tensor
    """Log-probabilities as the sampler reported them."""
    sampled_known: Tensor
    """Where it reported one."""


Gather = Callable[[CreditEvidence], tuple[CreditEvidence, Own]]
"""From what is known of this process's groups to what is known of those of all, and which of them are this process's."""


def alone(evidence: CreditEvidence) -> tuple[CreditEvidence, Own]:
    """There are no groups but these."""
    return evidence, slice(None)


def assign_credit(
    graded: GradedRollout,
    scoring: ScoringSettings,
    method: Method,
    tokens: ScoredTokens,
    token_entropy_mean: Tensor | None = None,
    reward: RewardSpec | None = None,
    gather: Gather = alone,
) -> RewardComputation:
    """Advantages and q of every group from the utilities.

    A method's shaping changes the utilities, normalisation puts them in units of a deviation, the credit rule makes
    advantages of them, row weights scale these. With ``policy_entropy_bonus_coef`` > 0 each utility first gains
    coef * sigma * z_i, where sigma is the deviation of the rollout's utilities and z_i the completion's mean token entropy,
    standardised within its group. Which completions are right is told from the utilities before all that.

    Args:
        graded: the rollout's utilities.
        scoring: bonus and weighting settings.
        method: the credit axis.
        tokens: lengths and the sampler's log-probabilities.
        token_entropy_mean: mean token entropy of each completion [N], needed for the bonus.
        reward: what is normalised, and the terms' weights; None is nothing.
        gather: puts the groups of all processes together, over which deviations are taken.

    Raises:
        GenerationError: the method looks at log-probabilities that the sampler did not report.
    """
    valid = valid_rows(graded, scoring.truncation)
    utilities = torch.tensor(graded.utilities, dtype=torch.float64).view_as(valid)
    facts = group_facts(graded, scoring, method, tokens, utilities, valid)
    entropy = None
    if scoring.policy_entropy_bonus_coef > 0:
        # a process without a group has nothing scored
        given = torch.zeros(0) if token_entropy_mean is None and not len(valid) else token_entropy_mean
        entropy = None if given is None else given.double().cpu().view_as(valid)
    terms = {name: torch.tensor(values, dtype=torch.float64).view_as(valid) for name, values in graded.per_term.items()}
    everywhere, own = gather(CreditEvidence(utilities, terms, facts, entropy))
    credit = group_credit(everywhere, scoring, method, reward).groups(own)
    q, row_weights = credit.log_q.exp(), credit.row_weights
    return RewardComputation(
        total_utils=credit.utilities.flatten().tolist(),
        per_reward_values=graded.per_term,
        advantage=AdvantageStats(credit.advantages.tolist(), credit.advantages.flatten().tolist()),
        pairs=graded.pairs,
        q_distribution=QDistribution(q.tolist(), q.flatten().tolist()),
        moments=credit.moments,
        ref_logprob_meta=list(graded.records),
        completion_metadata=graded.metadata,
        entropy_bonus_scale=credit.entropy_scale,
        shaped_utils=None if credit.shaped is None else credit.shaped.flatten().tolist(),
        normalized_utils=None if credit.normalised is None else credit.normalised.flatten().tolist(),
        row_weights=None if row_weights is None or _is_discount(scoring) else row_weights.tolist(),
        right=facts.right.flatten().tolist(),
        **_answer_entropies(scoring, facts, row_weights),
    )


def group_facts(
    graded: GradedRollout,
    scoring: ScoringSettings,
    method: Method,
    tokens: ScoredTokens,
    utilities: Tensor,
    valid: Tensor,
) -> GroupFacts:
    """What the credit rules may look at, by group."""
    size = graded.group_size
    lengths = tokens.mask.sum(dim=-1).cpu().view_as(valid)
    mean_logp = None
    if method.needs_behaviour_logp:
        mean_logp = behaviour_sums(tokens).view_as(valid) / tokens.measured.sum(dim=-1).cpu().view_as(valid).clamp(
            min=1
        )
    return GroupFacts(
        valid=valid,
        lengths=lengths,
        total_lengths=torch.tensor([len(record.token_ids) for record in graded.records], dtype=torch.long).view_as(
            valid
        ),
        keys=torch.tensor(
            [
                key
                for at in range(0, len(graded.metadata), size)
                for key in _group_keys([entry["key"] for entry in graded.metadata[at : at + size]])
            ],
            dtype=torch.long,
        ).view_as(valid),
        right=utilities >= scoring.weighting.right_threshold,
        mean_logp=mean_logp,
    )


def behaviour_sums(tokens: ScoredTokens) -> Tensor:
    """Log-probability of each completion under the sampler [N], in float64.

    Raises:
        GenerationError: the sampler left some out.
    """
    missing = int((tokens.measured & ~tokens.sampled_known).sum())
    if missing:
        raise GenerationError(
            f"the sampler reported no log-probability for {missing} of {int(tokens.measured.sum())} tokens, and this method's "
            "credit depends on them: let the sampler report log-probabilities, or choose a method that does not need them"
        )
    return torch.where(tokens.measured, tokens.sampled_logp.double(), 0.0).sum(dim=-1).cpu()


def _group_keys(names: Sequence[str | None]) -> list[int]:
    order = {name: place for place, name in enumerate(dict.fromkeys(name for name in names if name is not None))}
    return [NO_KEY if name is None else order[name] for name in names]


class _AnswerEntropies(TypedDict, total=False):
    seed_semantic_entropies: list[float]
    seed_advantage_scales: list[float]
    seed_alpha_effective: float
    seed_max_possible_entropy: float


def _is_discount(scoring: ScoringSettings) -> bool:
    return scoring.row_weights.kind is RowWeighting.answer_entropy


def _answer_entropies(scoring: ScoringSettings, facts: GroupFacts, discounts: Tensor | None) -> _AnswerEntropies:
    """The record of a method that discounts prompts by the entropy of their answers; empty for any other."""
    if not _is_discount(scoring) or discounts is None:
        return {}
    size = facts.valid.shape[-1]
    limit = math.log(size) if size > 1 else 0.0
    assert facts.mean_logp is not None
    return {
        "seed_semantic_entropies": answer_entropy(facts.keys, facts.valid, facts.mean_logp).tolist(),
        "seed_advantage_scales": discounts[:, 0].tolist(),
        "seed_alpha_effective": scoring.row_weights.entropy_alpha / limit if limit else 0.0,
        "seed_max_possible_entropy": limit,
    }


def _noted(verdicts: Mapping[str, TermVerdict], row: int) -> dict[str, Any]:
    """What went wrong on a completion, by term, and what was logged about it, by column."""
    return {
        "failures": {name: verdict.failures[row] for name, verdict in verdicts.items() if verdict.failures[row]},
        "extra": {name: column[row] for verdict in verdicts.values() for name, column in verdict.columns.items()},
    }


def _logged(verdicts: Mapping[str, TermVerdict]) -> dict[str, list[float]]:
    logged: dict[str, list[float]] = {}
    for verdict in verdicts.values():
        for name, numbers in verdict.metrics.items():
            logged.setdefault(name, []).extend(numbers)
    return logged


def _utility(grades: Mapping[str, Grade | None], weights: Mapping[str, float]) -> float:
    known = {name: grade.reward for name, grade in grades.items() if grade is not None}
    return sum(weights[name] * value for name, value in known.items()) if known else math.nan


def _verdict(grades: Sequence[Grade | None]) -> dict[str, Any]:
    modes = [grade.mode for grade in grades if grade is not None and grade.mode is not None]
    reasons = [grade.reason for grade in grades if grade is not None and grade.reason]
    keys = [grade.key for grade in grades if grade is not None and grade.key is not None]
    return {
        "mode": modes[0] if modes else None,
        "key": keys[0] if keys else None,
        "reason": reasons[0] if reasons else "",
    }

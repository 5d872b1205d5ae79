"""Credit as a pure function of what is known of a rollout's groups: shaping, normalisation, advantages, row weights and q.

Some rules compare completions over the whole rollout, so that the groups are those of all processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from maxent_grpo.objective.advantages import standardised_advantages
from maxent_grpo.objective.normalisation import normalised_sum, normalised_terms
from maxent_grpo.objective.weights import utility_log_q
from maxent_grpo.training.credit_rules import GroupFacts
from maxent_grpo.training.group_order import Own
from maxent_grpo.training.method import Method
from maxent_grpo.training.types.choices import NormalizeBy, RewardNormalization
from maxent_grpo.training.types.rewards import RewardMoments
from maxent_grpo.training.types.runtime import RewardSpec, ScoringSettings


@dataclass(frozen=True)
class CreditEvidence:
    """What credit follows from, each [P, G] in float64 unless its type says otherwise."""

    utilities: Tensor
    """As the terms add up; nan where all abstain."""
    terms: dict[str, Tensor]
    """Value of each term; nan where it abstains."""
    facts: GroupFacts
    token_entropy_mean: Tensor | None
    """Mean token entropy of each completion [nats]; None without the bonus."""


@dataclass(frozen=True)
class Credit:
    """What a rollout's completions are worth, each [P, G]."""

    utilities: Tensor
    """With the entropy bonus, where there is one."""
    shaped: Tensor | None
    """Reshaped by their group or length; None where no rule does that."""
    normalised: Tensor | None
    """In units of a deviation; None where they stay as they are."""
    log_q: Tensor
    advantages: Tensor
    row_weights: Tensor | None
    """Factors that are in the advantages; None where there are none."""
    moments: RewardMoments
    """Of the utilities of all groups."""
    entropy_scale: float | None
    """Multiplier of the entropy bonus; None without one."""

    def groups(self, own: Own) -> Credit:
        """Some of the groups; moments and scale stay those of all."""

        def part(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[own]

        return Credit(
            self.utilities[own], part(self.shaped), part(self.normalised), self.log_q[own], self.advantages[own],
            part(self.row_weights), self.moments, self.entropy_scale,
        )  # fmt: skip


def group_credit(
    evidence: CreditEvidence, scoring: ScoringSettings, method: Method, reward: RewardSpec | None
) -> Credit:
    """Credit of every group; see ``credit.assign_credit``.

    Args:
        evidence: of all groups of the rollout.
        scoring: bonus and weighting settings.
        method: the credit axis.
        reward: what is normalised, and the terms' weights; None is nothing.
    """
    facts, utilities, scale = evidence.facts, evidence.utilities, None
    valid = facts.valid
    if scoring.policy_entropy_bonus_coef > 0:
        assert evidence.token_entropy_mean is not None, "the bonus needs a scoring pass before credit is assigned"
        scale = scoring.policy_entropy_bonus_coef * moments(utilities, valid).std
        utilities = utilities + scale * standardised_advantages(evidence.token_entropy_mean, valid)
    shaped = utilities if method.shape is None else method.shape(utilities, facts)
    normalised = _normalised(shaped, evidence, reward)
    credited = shaped if normalised is None else normalised
    weighting = scoring.weighting
    log_q = utility_log_q(credited, valid, temperature=weighting.q_temperature, epsilon=weighting.q_epsilon)
    advantages = torch.zeros_like(utilities) if method.advantages is None else method.advantages(credited, facts)
    row_weights = None if method.row_weights is None else method.row_weights(advantages, facts)
    if row_weights is not None:
        advantages = advantages * row_weights
    return Credit(
        utilities, None if method.shape is None else shaped, normalised, log_q, advantages, row_weights,
        moments(utilities, valid), scale,
    )  # fmt: skip


def moments(utilities: Tensor, valid: Tensor) -> RewardMoments:
    """Mean and population deviation of the valid utilities; nan without any."""
    known = utilities[valid]
    if known.numel() == 0:
        return RewardMoments(math.nan, math.nan)
    return RewardMoments(float(known.mean()), float(known.std(correction=0)))


def _normalised(utilities: Tensor, evidence: CreditEvidence, reward: RewardSpec | None) -> Tensor | None:
    """The utilities in units of a deviation, as configured; None where they stay as they are."""
    if reward is None or reward.normalize is RewardNormalization.none:
        return None
    valid, over_batch = evidence.facts.valid, reward.normalize_by is NormalizeBy.batch
    if reward.normalize is RewardNormalization.sum:
        return normalised_sum(utilities, valid, over_batch=over_batch)
    terms = torch.stack(list(evidence.terms.values()))
    weights = torch.tensor(reward.reward_weights, dtype=torch.float64)
    return normalised_terms(terms, ~terms.isnan() & valid, weights, over_batch=over_batch)

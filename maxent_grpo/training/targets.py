"""What the policy is moved towards: per-sequence advantages and the target weights of each group."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maxent_grpo.objective.group_losses import centred, soft_utilities
from maxent_grpo.objective.logprobs import sequence_score
from maxent_grpo.objective.weights import (
    informative_groups,
    listwise_groups,
    masked_log_softmax,
    maxent_log_weights,
    utility_log_q,
)
from maxent_grpo.training.control.base import InformativeGroups
from maxent_grpo.training.types.choices import NeutralGroups, ScoreMode
from maxent_grpo.training.types.rewards import ReferenceLogprobs, RewardComputation
from maxent_grpo.training.types.weighting import ControllerValues, WeightingSettings


@dataclass(frozen=True)
class SequenceTargets:
    """Targets of one optimiser step's groups, detached. Rows are prompt-major: row n is [n // G, n % G]."""

    advantages: Tensor
    """[P, G]; 0 for rows without a valid reward."""
    log_weights: Tensor
    """log w [P, G]; -inf where a completion takes no part."""
    log_q: Tensor
    """log q [P, G] over the same completions."""
    log_reference: Tensor
    """Reference score of each completion [P, G] [nats]; 0 without a reference."""
    listwise_valid: Tensor
    """Completions that take part in the listwise term [P, G]."""
    utilities: Tensor
    """[P, G]."""
    valid: Tensor
    """Rows with a valid reward [P, G]."""
    right: Tensor
    """Rows whose utility reaches `right_threshold` [P, G]."""
    behaviour_scores: Tensor
    """Score of each completion under the sampler [P, G] [nats]; 0 where the method does not look at it."""
    values: ControllerValues
    """tau and beta in force."""

    @property
    def group_size(self) -> int:
        """G."""
        return self.advantages.shape[1]

    def groups(self, first: int, last: int) -> SequenceTargets:
        """The targets of prompts first .. last - 1."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: value[first:last] for name, value in tensors.items()})


@dataclass(frozen=True)
class GroupEvidence:
    """What the weights of each group follow from once tau and beta are known, all [P, G] in float64."""

    utilities: Tensor
    """As credit saw them."""
    right: Tensor
    """Rows whose reward reaches `right_threshold`."""
    log_q: Tensor
    """-inf where a completion takes no part."""
    log_reference: Tensor | None
    """Reference scores [nats]; None without a reference."""
    behaviour_scores: Tensor | None
    """Scores under the sampler [nats]; None where the method does not look at them."""
    valid: Tensor
    """Rows with a valid reward."""
    takes_part: Tensor
    """Completions that take part in the listwise term."""

    def informative(self, first: int, last: int) -> InformativeGroups:
        """Those of groups first .. last - 1 whose weights depend on tau."""
        part = slice(first, last)
        rows = informative_groups(self.utilities[part], self.takes_part[part])
        reference = None if self.log_reference is None else self.log_reference[part][rows]
        return InformativeGroups(self.log_q[part][rows], reference, self.takes_part[part][rows])


def group_evidence(
    rewards: RewardComputation,
    valid: Tensor,
    complete: Tensor,
    reference: ReferenceLogprobs | None,
    weighting: WeightingSettings,
    behaviour_scores: Tensor | None = None,
    counted: Tensor | None = None,
) -> GroupEvidence:
    """Utilities, q and reference scores of every group, and which completions take part.

    Args:
        rewards: utilities of the groups, and which completions are right.
        valid: [P, G] rows with a valid reward that are not excluded.
        complete: [P, G] rows that ended by themselves. A truncated completion's score is the probability of a prefix,
            larger than that of any completion it could have become, so it takes no part in the listwise term.
        reference: reference scores, or None where none is kept.
        weighting: which neutral groups take part, and the temperature and floor of q, which is over the completions that do.
        behaviour_scores: [P, G] scores under the sampler, where the method looks at them.
        counted: [P] groups that the loss is made of; None is all.
    """
    utilities = torch.tensor(rewards.credited_utils, dtype=torch.float64).view_as(valid)
    if rewards.right is None:
        right = torch.tensor(rewards.total_utils, dtype=torch.float64).view_as(valid) >= weighting.right_threshold
    else:
        right = torch.tensor(rewards.right, dtype=torch.bool).view_as(valid)
    takes_part = valid & complete
    if counted is not None:
        takes_part = takes_part & counted.unsqueeze(-1)
    groups = listwise_groups(
        utilities,
        takes_part,
        right,
        keep_right=weighting.neutral_groups is not NeutralGroups.skip,
        keep_wrong=weighting.neutral_groups is NeutralGroups.keep,
    )
    takes_part = takes_part & groups.unsqueeze(-1)
    log_q = utility_log_q(utilities, takes_part, temperature=weighting.q_temperature, epsilon=weighting.q_epsilon)
    log_reference = None if reference is None else reference.ref_logp_sum.double().cpu().view_as(utilities)
    return GroupEvidence(utilities, right, log_q, log_reference, behaviour_scores, valid, takes_part)


def sequence_targets(
    rewards: RewardComputation,
    evidence: GroupEvidence,
    weighting: WeightingSettings,
    values: ControllerValues,
    *,
    soft: bool = False,
) -> SequenceTargets:
    """Advantages A_i of every group, and its weights w_i, at the current tau and beta.

    With ``soft`` the advantages are those of the regularised reward r / T_q - tau s + beta (s_ref - s), centred.
    """
    advantages = torch.tensor(rewards.advantage.grouped, dtype=torch.float64).view_as(evidence.valid)
    log_q, takes_part, utilities = evidence.log_q, evidence.takes_part, evidence.utilities
    log_reference = torch.zeros_like(log_q) if evidence.log_reference is None else evidence.log_reference
    log_weights = maxent_log_weights(log_q, log_reference, takes_part, tau=values.tau, beta=values.beta)
    behaviour = torch.zeros_like(log_q) if evidence.behaviour_scores is None else evidence.behaviour_scores
    if soft:
        rewarded = soft_utilities(
            utilities, behaviour, log_reference,
            tau=values.tau, beta=values.beta, q_temperature=weighting.q_temperature,
        )  # fmt: skip
        advantages = centred(rewarded, evidence.valid)
    return SequenceTargets(
        advantages, log_weights, log_q, log_reference, takes_part, utilities, evidence.valid, evidence.right,
        behaviour, values,
    )  # fmt: skip


def group_scores(
    logp_sum: Tensor, lengths: Tensor, weighting: WeightingSettings, score_mode: ScoreMode, group_size: int
) -> Tensor:
    """Detached policy scores by group, [P, G] in float64, from summed log-probabilities [N]."""
    score = sequence_score(logp_sum.detach(), lengths, mode=score_mode, score_length=weighting.score_length)
    return score.double().cpu().view(-1, group_size)


def policy_group_log_probs(targets: SequenceTargets, scores: Tensor) -> Tensor:
    """log p over each group from the policy's scores, on the completions that take part."""
    return masked_log_softmax(scores, targets.listwise_valid)

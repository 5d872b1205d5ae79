"""The loss of one slice, as a share of the step's loss.

L = -sum c_i J_it  +  kl_beta sum c_i kl_it  -  entropy_coef sum c_i H_it  +  listwise_scale / N_grp * sum of group losses

with every sum over trained tokens and c_i from step-global counts, so that slices add up to the step's loss whatever
their size. Advantages, weights, old and reference log-probabilities arrive detached.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maxent_grpo.objective.divergence import token_divergence
from maxent_grpo.objective.logprobs import sequence_score
from maxent_grpo.objective.ratios import log_ratio, sequence_ratio
from maxent_grpo.objective.reduction import StepCounts, reduce_tokens
from maxent_grpo.objective.surrogate import clipped_objective
from maxent_grpo.training.method import Method, upper_clip
from maxent_grpo.training.types.choices import ScoreMode
from maxent_grpo.training.types.rewards import LossOutputs, LossScalarBundle, SequenceScores
from maxent_grpo.training.types.runtime import ClipSettings
from maxent_grpo.training.types.weighting import WeightingSettings


@dataclass(frozen=True)
class SliceTargets:
    """Targets of a slice's rows, detached and on the model's device; n rows, T tokens."""

    advantages: Tensor
    """[n]."""
    reference_logp: Tensor | None
    """[n, T], or None without a token KL."""
    sampled_logp: Tensor | None
    """[n, T] as the sampler reported it, or None."""
    listwise_value: Tensor
    """[n] share of each row's group in the cross-entropy: CE / G, 0 for groups that take no part."""
    listwise_coefficient: Tensor
    """[n] dCE/ds_i."""
    weights: Tensor
    """[n] target weights w_i."""
    weight_baseline: Tensor
    """[n] 1 / (number of the group's completions that take part); 0 where a row takes none."""
    trained_tokens: Tensor | None = None
    """[n, T] tokens that the policy term keeps; None keeps all that are trained."""
    held_tokens: Tensor | None = None
    """[n, T] tokens that are held near the behaviour policy; None has none."""


def compute_loss(
    scores: SequenceScores,
    targets: SliceTargets,
    method: Method,
    weighting: WeightingSettings,
    *,
    score_mode: ScoreMode,
    kl_beta: float,
    counts: StepCounts,
) -> LossOutputs:
    """The slice's share of the step's loss and its parts; see the module for the formula.

    Returns a loss that carries gradient also when nothing in the slice is trained (it is then 0), so that every process
    takes part in the backward pass.
    """
    mask, logp, old = _required(scores.token_mask), _required(scores.token_logp), _required(scores.old_token_logp)
    coefficients = method.coefficients(mask.sum(dim=-1), counts)
    log_ratios = log_ratio(logp, old, mask)
    ratios = method.ratio(log_ratios, mask)

    zero = torch.where(mask, logp, torch.zeros_like(logp)).sum() * 0.0
    policy = zero
    if method.has_policy_term:
        objective = policy_objective(logp, old, log_ratios, ratios, mask, targets, method)
        trained = mask if targets.trained_tokens is None else mask & targets.trained_tokens
        policy = zero - reduce_tokens(objective, trained, coefficients)

    kl = zero
    if kl_beta > 0:
        divergence = method.kl(token_divergence(logp, _required(targets.reference_logp), mask), ratios)
        kl = kl_beta * reduce_tokens(divergence, mask, coefficients)

    entropy = zero
    if method.entropy_coef > 0:
        entropy = -method.entropy_coef * reduce_tokens(_required(scores.token_entropy), mask, coefficients)

    listwise = zero
    if method.listwise_scale > 0:
        score = sequence_score(
            scores.cur_logp_sum, mask.sum(dim=-1), mode=score_mode, score_length=weighting.score_length
        )
        listwise = method.listwise_scale / max(counts.groups, 1.0) * group_rows(score, targets).sum()

    clip_loss = None
    total = policy + kl + entropy + listwise
    if method.listwise_clip is not None:
        auxiliary = clipped_listwise(log_ratios, mask, targets, method.listwise_clip, counts)
        total = total + method.listwise_clip.clip_objective_coef * auxiliary
        clip_loss = float(auxiliary.detach())

    weighted_kl = float(kl.detach())
    scalars = LossScalarBundle(
        total_loss=float(total.detach()),
        policy_loss=float(policy.detach()),
        clip_loss=clip_loss,
        kl_loss=weighted_kl / kl_beta if kl_beta > 0 else 0.0,
        weighted_kl_loss=weighted_kl,
        listwise_loss=float(listwise.detach()),
        entropy_loss=float(entropy.detach()),
    )
    return LossOutputs(total, scalars, scores.log_ratio_train, scores.denom_tok_tensor)


def policy_objective(
    logp: Tensor, old: Tensor, log_ratios: Tensor, ratios: Tensor, mask: Tensor, targets: SliceTargets, method: Method
) -> Tensor:
    """J_it, [n, T]: the method's surrogate, weighted by the mismatch of sampler and trainer, minus the pull on tokens that are held."""
    objective = method.objective(ratios, logp, targets.advantages.unsqueeze(-1).expand_as(log_ratios))
    if method.mismatch is not None:
        objective = objective * method.mismatch(old, _required(targets.sampled_logp), mask)
    if targets.held_tokens is not None and method.selection is not None:
        held = targets.held_tokens & mask
        objective = objective - method.selection.kl_coef * torch.where(held, log_ratios.abs(), 0.0)
    return objective


def group_rows(score: Tensor, targets: SliceTargets) -> Tensor:
    """[n] rows that add up to the losses of their groups: the value is a share of the group's, the slope that of the row's score."""
    slope = targets.listwise_coefficient.detach()
    return targets.listwise_value.detach() + slope * (score - score.detach())


def clipped_listwise(
    log_ratios: Tensor, mask: Tensor, targets: SliceTargets, clip: ClipSettings, counts: StepCounts
) -> Tensor:
    """Auxiliary term of listwise methods: -(1/N_grp) sum min(rho_i a_i, clip(rho_i) a_i), a_i = w_i - b.

    rho_i is the length-normalised sequence ratio; b is `clip_adv_baseline`, by default 1/n of the group, with which the
    a_i of a group sum to zero.
    """
    ratio = sequence_ratio(log_ratios, mask)[:, 0]
    takes_part = targets.weight_baseline > 0
    baseline = targets.weight_baseline if clip.clip_adv_baseline is None else clip.clip_adv_baseline
    advantage = torch.where(takes_part, targets.weights - baseline, torch.zeros_like(targets.weights))
    objective = clipped_objective(ratio, advantage, low=clip.clip_range, high=upper_clip(clip), delta=clip.clip_delta)
    return -objective.sum() / max(counts.groups, 1.0)


def _required(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "setup asks scoring for every quantity that the resolved method reads"
    return tensor

"""Which groups of a rollout need to be run through the model: those whose loss has a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from maxent_grpo.training.method import Method
from maxent_grpo.training.targets import group_evidence
from maxent_grpo.training.types.choices import Reduction
from maxent_grpo.training.types.rewards import RewardComputation
from maxent_grpo.training.types.runtime import ScoringSettings


def scored_groups(
    method: Method,
    scoring: ScoringSettings,
    rewards: RewardComputation,
    valid: Tensor,
    complete: Tensor,
    counted: Tensor,
    mask: Tensor,
) -> Tensor:
    """[P] groups that are scored; the gradient of the others is exactly zero, whatever tau and beta are.

    A group without trained tokens has no term in any loss. One whose advantages are all 0 has none where the loss is a policy
    term, sum of A_i times something finite, and a listwise term that the group takes no part in.

    Args:
        method: the axes, which say whether groups without credit are left out.
        scoring: the settings that the axes come from.
        rewards: advantages and utilities.
        valid: [P, G] rows with a reward that are not excluded.
        complete: [P, G] rows that ended by themselves.
        counted: [P] groups that the loss is made of.
        mask: [N, T] trained tokens.
    """
    everything = torch.ones_like(counted)
    if not scoring.batching.skip_zero_signal or scoring.reduction is Reduction.micro_batch:
        return everything
    trained = mask.any(dim=-1).cpu().view_as(valid) & counted.unsqueeze(-1)
    if not method.skips_silent_groups:
        return trained.any(dim=-1)
    advantages = torch.tensor(rewards.advantage.grouped, dtype=torch.float64).view_as(valid)
    credit = (trained & advantages.ne(0)).any(dim=-1)
    if method.is_listwise:
        evidence = group_evidence(rewards, valid, complete, None, scoring.weighting, counted=counted)
        credit = credit | evidence.takes_part.any(dim=-1)
    return trained.any(dim=-1) & credit

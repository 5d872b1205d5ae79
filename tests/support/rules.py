"""Advantage rules for tests, named in `scoring.advantage_function` as support.rules:<name>."""

import torch
from torch import Tensor

from maxent_grpo.training.credit_rules import GroupFacts


def centred(utilities: Tensor, facts: GroupFacts) -> Tensor:
    """r - mean, where every completion is valid."""
    return utilities - utilities.mean(dim=-1, keepdim=True)


def first_of_the_group(utilities: Tensor, facts: GroupFacts) -> Tensor:
    """1 for the first completion of a group whatever its reward, 0 for the others."""
    return torch.zeros_like(utilities).index_fill(-1, torch.tensor([0]), 1.0)

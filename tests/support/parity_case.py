"""The batch, the models and the table of methods that both trainers are given, and how closely they must agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from support.parity import GivenBatch, Outcome, token_logp
from support.tiny import tiny_qwen2
from torch import Tensor
from transformers import PreTrainedModel

Options = Mapping[str, Any]

BATCH = GivenBatch(
    prompts=((7, 5, 9), (8, 3, 11, 6, 4)),
    groups=(
        ((7, 9, 2), (2,), (5, 8, 11, 6, 2), (10, 4, 12, 9, 13, 7)),  # one of a single token, one cut by the limit
        ((6, 2), (14, 3, 9, 2), (8, 8, 5, 4, 9, 2), (3, 12, 2)),
    ),
    max_length=6,
)
ADVANTAGES = torch.tensor([0.9, -1.1, 0.4, -0.7, 1.3, -0.2, 0.0, -1.4])
DRIFT = 0.4

LOSSES: dict[str, tuple[Options, str, Options]] = {
    "grpo": ({"loss_type": "grpo"}, "grpo", {}),
    "bnpo": ({"loss_type": "bnpo"}, "bnpo", {}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, "dr_grpo", {}),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, "dapo", {}),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.3}, "cispo", {"scoring.surrogate.ratio_cap": 1.3}),
    "sapo": ({"loss_type": "sapo"}, "sapo", {}),
}
"""loss_type -> (TRL's options, our method, settings changed)."""


def reference_model() -> PreTrainedModel:
    """A Qwen2 of two layers in float32."""
    return tiny_qwen2(torch.float32, hidden_size=32, intermediate_size=48)


def moved_policy() -> PreTrainedModel:
    """The reference with every weight moved, in training mode."""
    model, generator = reference_model(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model.train()


def distant_logp(policy: PreTrainedModel, batch: GivenBatch = BATCH, *, seed: int = 2) -> Tensor:
    """Log-probabilities of a behaviour policy so far from ``policy`` that every side of every clip is reached."""
    noise = torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(seed))
    return token_logp(policy, batch) + DRIFT * noise * batch.mask


def assert_same(ours: Outcome, theirs: Outcome, *, times: float = 1.0) -> None:
    """Our loss is ``times`` theirs to 1e-5, and so is the gradient of every parameter, relative to its largest entry."""
    assert ours.loss == pytest.approx(times * theirs.loss, abs=1e-5)
    assert ours.gradients.keys() == theirs.gradients.keys()
    for name, theirs_here in theirs.gradients.items():
        expected = times * theirs_here
        scale = float(expected.abs().max())
        assert scale > 1e-5, name
        difference = float((ours.gradients[name] - expected).abs().max())
        assert difference <= 1e-5 * scale, (name, difference, scale)


def differ(one: Outcome, other: Outcome) -> float:
    """How far apart two gradients are, relative to the first."""
    gap = sum(float((value - other.gradients[name]).square().sum()) for name, value in one.gradients.items())
    return (gap / sum(float(value.square().sum()) for value in one.gradients.values())) ** 0.5

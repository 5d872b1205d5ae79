"""The tokens of a step that its policy term trains, chosen by statistics over all slices and processes of the step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from maxent_grpo.distributed import gather_all
from maxent_grpo.objective.ratios import log_ratio
from maxent_grpo.objective.surrogate import clipped_tokens
from maxent_grpo.objective.token_selection import (
    clipped_covariance_tokens,
    high_entropy_tokens,
    largest_covariance_tokens,
    num_selected,
    token_covariance,
)
from maxent_grpo.training.method import Method, upper_clip
from maxent_grpo.training.types.choices import TokenSelection
from maxent_grpo.training.types.credit import TokenSelectionSettings
from maxent_grpo.training.types.runtime import ClipSettings


@dataclass(frozen=True)
class StepTokens:
    """The trained tokens of a step on one process, each a vector over them in row order, on the CPU."""

    logp: Tensor
    old_logp: Tensor
    advantages: Tensor
    entropy: Tensor
    priority: Tensor
    """Uniform numbers that belong to row, sample and place, so that a random choice does not depend on the order."""


@dataclass(frozen=True)
class TokenChoice:
    """[N, T] masks of the step's rows."""

    trained: Tensor | None
    """Tokens that the policy term keeps; None keeps all."""
    held: Tensor | None
    """Tokens held near the behaviour policy; None has none."""
    selected: float
    """Share of the step's trained tokens that the rule picked out."""
    kept: float
    """Tokens that the policy term keeps, over processes."""


def step_tokens(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, entropy: Tensor | None, priority: np.ndarray, mask: Tensor
) -> StepTokens:
    """The masked entries of [N, T] tensors and of [N] advantages, as vectors."""
    mask = mask.cpu()

    def taken(values: Tensor) -> Tensor:
        return values.detach().cpu().double()[mask]

    return StepTokens(
        taken(logp),
        taken(old_logp),
        taken(advantages.unsqueeze(-1).expand_as(logp)),
        taken(torch.zeros_like(logp) if entropy is None else entropy),
        torch.from_numpy(np.ascontiguousarray(priority))[mask],
    )


def choose_tokens(
    accelerator: Accelerator, method: Method, clip: ClipSettings, tokens: StepTokens, mask: Tensor
) -> TokenChoice:
    """Apply the method's rule to the tokens of all processes and return this one's part."""
    settings = method.selection
    assert settings is not None
    parts: list[StepTokens] = gather_all(accelerator, tokens)
    joined = StepTokens(*(torch.cat([getattr(part, name) for part in parts]).unsqueeze(0) for name in vars(tokens)))
    everywhere = _picked(settings, clip, joined)[0]
    before = sum(len(part.logp) for part in parts[: accelerator.process_index])
    here = torch.zeros_like(mask.cpu())
    here[mask.cpu()] = everywhere[before : before + len(tokens.logp)]
    total, picked = max(len(everywhere), 1), float(everywhere.sum())
    if settings.kind is TokenSelection.kl_cov:
        return TokenChoice(None, here, picked / total, float(len(everywhere)))
    if settings.kind is TokenSelection.clip_cov:
        return TokenChoice(mask.cpu() & ~here, None, picked / total, len(everywhere) - picked)
    return TokenChoice(here, None, picked / total, picked)


def _picked(settings: TokenSelectionSettings, clip: ClipSettings, tokens: StepTokens) -> Tensor:
    everything = torch.ones_like(tokens.logp, dtype=torch.bool)
    if settings.kind is TokenSelection.high_entropy:
        return high_entropy_tokens(tokens.entropy, everything, quantile=settings.entropy_quantile)
    covariance = token_covariance(tokens.logp, tokens.advantages, everything)
    number = num_selected(everything, settings.share)
    if settings.kind is TokenSelection.kl_cov:
        return largest_covariance_tokens(covariance, everything, tokens.priority, number=number)
    eligible = everything
    if clip.use_clip_objective:
        ratio = log_ratio(tokens.logp, tokens.old_logp, everything).exp()
        stopped = clipped_tokens(ratio, tokens.advantages, everything, low=clip.clip_range, high=upper_clip(clip))
        eligible = ~(stopped.low | stopped.high)
    return clipped_covariance_tokens(
        covariance,
        eligible,
        tokens.priority,
        number=number,
        low=settings.covariance_low,
        high=settings.covariance_high,
    )

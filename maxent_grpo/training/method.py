"""Resolves the configured axes of a method, once, into the callables that the step calls.

This is the only place that reads the names of the axes. A new method is usually one configuration dataclass and one pure
function entered in a table here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from maxent_grpo.config.resolve import listwise_lengths
from maxent_grpo.objective.advantages import centred_advantages, standardised_advantages
from maxent_grpo.objective.divergence import KL_ESTIMATORS
from maxent_grpo.objective.mismatch import mismatch_weights
from maxent_grpo.objective.ratios import sequence_ratio, token_ratio
from maxent_grpo.objective.reduction import (
    StepCounts,
    constant_coefficients,
    sequence_coefficients,
    token_coefficients,
)
from maxent_grpo.objective.surrogate import clipped_objective, plain_objective
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    BehaviorSource,
    MismatchMode,
    RatioLevel,
    Reduction,
    ScoreMode,
)
from maxent_grpo.training.types.runtime import ClipSettings, ScoringSettings

CREDIT: dict[AdvantageKind, Callable[[Tensor, Tensor], Tensor] | None] = {
    AdvantageKind.none: None,
    AdvantageKind.group_mean: centred_advantages,
    AdvantageKind.group_std: standardised_advantages,
}
"""Credit axis: (utilities [P, G], valid [P, G]) -> advantages [P, G]; None has no advantage term."""


@dataclass(frozen=True)
class Method:
    """A method as the step sees it: four axes, each a callable or a number."""

    advantages: Callable[[Tensor, Tensor], Tensor] | None
    """Credit: (utilities, valid) -> advantages; None for a purely listwise method."""
    ratio: Callable[[Tensor, Tensor], Tensor]
    """Ratio level: (log-ratios [n, T], mask [n, T]) -> ratios [n, T]."""
    objective: Callable[[Tensor, Tensor], Tensor]
    """Clip rule: (ratios, advantages) -> what is maximised per token."""
    coefficients: Callable[[Tensor, StepCounts], Tensor]
    """Reduction: (lengths [n], counts) -> c_i [n]."""
    kl: Callable[[Tensor], Tensor]
    """Regulariser: d -> estimate of the token KL."""
    listwise_scale: float
    """Regulariser: factor of (1/N_grp) sum CE in the loss; 0 has no listwise term."""
    listwise_clip: ClipSettings | None
    """Regulariser: clipped auxiliary listwise term, or None."""
    entropy_coef: float
    """Regulariser: coefficient of the token-entropy bonus."""
    mismatch: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    """Correction: (old, sampled, mask) -> weights of the policy term per token, or None."""
    ratio_from_sampler: bool
    """Whether the ratio's denominator is the sampler's log-probability rather than the trainer's."""


def resolve_method(scoring: ScoringSettings, *, score_mode: ScoreMode, max_completion_len: int) -> Method:
    """The callables of the configured method; ``score_mode`` is already resolved from ``auto``."""
    clip = scoring.clipping
    has_advantage = scoring.advantage is not AdvantageKind.none
    from_sampler = scoring.behavior_logprobs_source in (BehaviorSource.sampler, BehaviorSource.vllm)
    bypass = from_sampler and scoring.mismatch.mode is MismatchMode.bypass
    return Method(
        advantages=CREDIT[scoring.advantage],
        ratio=_ratio(scoring.ratio_level),
        objective=_objective(clip),
        coefficients=_coefficients(scoring.reduction, max_completion_len),
        kl=KL_ESTIMATORS[scoring.kl_estimator],
        listwise_scale=listwise_scale(scoring, score_mode=score_mode, max_completion_len=max_completion_len),
        listwise_clip=clip if clip.use_clip_objective and not has_advantage else None,
        entropy_coef=scoring.entropy_coef,
        mismatch=_mismatch(scoring) if from_sampler and not bypass else None,
        ratio_from_sampler=bypass,
    )


def listwise_scale(scoring: ScoringSettings, *, score_mode: ScoreMode, max_completion_len: int) -> float:
    """Factor of the listwise cross-entropy: lambda, times L_s / T_max where ``listwise_lengths`` says so."""
    coefficient = scoring.weighting.listwise_coef
    lengths = listwise_lengths(scoring, score_mode, max_completion_len)
    return coefficient if lengths is None else coefficient * lengths[0] / lengths[1]


def upper_clip(clip: ClipSettings) -> float:
    """The upper clip distance: its own setting, else the lower one."""
    return clip.clip_range if clip.clip_range_high is None else clip.clip_range_high


def _ratio(level: RatioLevel) -> Callable[[Tensor, Tensor], Tensor]:
    if level is RatioLevel.sequence:
        return sequence_ratio
    return lambda log_ratios, _mask: token_ratio(log_ratios)


def _objective(clip: ClipSettings) -> Callable[[Tensor, Tensor], Tensor]:
    if not clip.use_clip_objective:
        return plain_objective
    bounded = partial(clipped_objective, low=clip.clip_range, high=upper_clip(clip), delta=clip.clip_delta)
    return lambda ratio, advantage: clip.clip_objective_coef * bounded(ratio, advantage)


def _coefficients(reduction: Reduction, max_completion_len: int) -> Callable[[Tensor, StepCounts], Tensor]:
    return {
        Reduction.token: token_coefficients,
        Reduction.sequence: sequence_coefficients,
        Reduction.constant: partial(constant_coefficients, max_length=max_completion_len),
    }[reduction]


def _mismatch(scoring: ScoringSettings) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    settings = scoring.mismatch
    return partial(mismatch_weights, mode=settings.mode, cap=settings.cap, floor=settings.floor)

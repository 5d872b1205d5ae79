"""Resolves the configured axes of a method, once, into the callables that the step calls.

This is the only place that reads the names of the axes. A new method is usually one configuration dataclass and one pure
function entered in a table here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from maxent_grpo.config.resolve import listwise_lengths
from maxent_grpo.objective.divergence import KL_ESTIMATORS, kl_k3_is
from maxent_grpo.objective.group_losses import (
    centred_likelihood,
    centred_residual_squares,
    conditional_cross_entropy,
    importance_likelihood,
)
from maxent_grpo.objective.mismatch import mismatch_weights, raw_mismatch
from maxent_grpo.objective.ratios import sequence_ratio, token_ratio
from maxent_grpo.objective.reduction import (
    StepCounts,
    constant_coefficients,
    micro_batch_coefficients,
    sequence_coefficients,
    token_coefficients,
)
from maxent_grpo.objective.surrogate import (
    clipped_objective,
    plain_objective,
    soft_gate_objective,
    weighted_likelihood_objective,
)
from maxent_grpo.objective.weights import ListwiseTerm, listwise_cross_entropy
from maxent_grpo.training.credit_rules import CreditRule, credit_rules
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    BehaviorSource,
    GroupLoss,
    KlEstimator,
    MismatchMode,
    RatioLevel,
    Reduction,
    RowWeighting,
    ScoreMode,
    Shaping,
    Surrogate,
    TokenSelection,
)
from maxent_grpo.training.types.credit import TokenSelectionSettings
from maxent_grpo.training.types.runtime import ClipSettings, ScoringSettings

if TYPE_CHECKING:
    from maxent_grpo.training.targets import SequenceTargets

GROUP_LOSSES: dict[GroupLoss, Callable[[SequenceTargets, float, Tensor], ListwiseTerm]] = {
    GroupLoss.cross_entropy: lambda t, _, s: listwise_cross_entropy(t.log_weights, s, t.listwise_valid),
    GroupLoss.centred_likelihood: lambda t, _, s: centred_likelihood(
        t.log_weights, s, t.listwise_valid, denominator=t.values.tau + t.values.beta
    ),
    GroupLoss.importance_likelihood: lambda t, _, s: importance_likelihood(
        t.log_weights, s, t.listwise_valid, t.behaviour_scores
    ),
    GroupLoss.conditional: lambda t, _, s: conditional_cross_entropy(t.right, s, t.listwise_valid),
    GroupLoss.squared_residual: lambda t, q_temperature, s: centred_residual_squares(
        t.utilities.masked_fill(~t.listwise_valid, 0.0),
        s,
        t.listwise_valid,
        t.log_reference,
        tau=t.values.tau,
        beta=t.values.beta,
        q_temperature=q_temperature,
    ),
}
"""Listwise term: (targets, q_temperature, policy scores [P, G]) -> value and slope of each group."""


@dataclass(frozen=True)
class Method:
    """A method as the step sees it: four axes, each a callable or a number."""

    shape: CreditRule | None
    """Credit: (utilities, facts) -> utilities reshaped by their group; None leaves them."""
    advantages: CreditRule | None
    """Credit: (shaped utilities, facts) -> advantages; None for a purely listwise method, and for `soft`."""
    soft: bool
    """Credit: advantages are those of the regularised reward, which follow from tau and beta at each step."""
    row_weights: CreditRule | None
    """Credit: (advantages, facts) -> factors of the advantages; None is 1."""
    needs_behaviour_logp: bool
    """Whether credit or the listwise term looks at the sampler's log-probabilities."""
    ratio: Callable[[Tensor, Tensor], Tensor]
    """Ratio level: (log-ratios [n, T], mask [n, T]) -> ratios [n, T]."""
    objective: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Clip rule: (ratios, log-probs, advantages) -> what is maximised per token."""
    selection: TokenSelectionSettings | None
    """Clip rule: which tokens train by statistics of the whole step; None is all."""
    coefficients: Callable[[Tensor, StepCounts], Tensor]
    """Reduction: (lengths [n], counts) -> c_i [n]."""
    kl: Callable[[Tensor, Tensor], Tensor]
    """Regulariser: (d, ratios) -> estimate of the token KL."""
    listwise_scale: float
    """Regulariser: factor of (1/N_grp) sum of group losses in the loss; 0 has no listwise term."""
    group_loss: Callable[[SequenceTargets, Tensor], ListwiseTerm]
    """Regulariser: (targets, detached policy scores [P, G]) -> value and slope of each group's loss."""
    listwise_clip: ClipSettings | None
    """Regulariser: clipped auxiliary listwise term, or None."""
    entropy_coef: float
    """Regulariser: coefficient of the token-entropy bonus."""
    mismatch: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    """Correction: (old, sampled, mask) -> weights of the policy term per token, or None."""
    raw_mismatch: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Correction: the same weights before they are capped or masked; without a correction one per token."""
    ratio_from_sampler: bool
    """Whether the ratio's denominator is the sampler's log-probability rather than the trainer's."""
    skips_silent_groups: bool = False
    """Whether a group without credit has an exactly zero gradient and nothing else is made of its scores."""

    @property
    def is_listwise(self) -> bool:
        """Whether the loss has a term over whole groups."""
        return self.listwise_scale > 0 or self.listwise_clip is not None

    @property
    def has_policy_term(self) -> bool:
        """Whether the loss has an advantage term."""
        return self.advantages is not None or self.soft


def resolve_method(
    scoring: ScoringSettings, *, score_mode: ScoreMode, max_completion_len: int, moves_kl_beta: bool = False
) -> Method:
    """The callables of the configured method.

    Args:
        scoring: the axes.
        score_mode: already resolved from ``auto``.
        max_completion_len: T_max [tokens].
        moves_kl_beta: whether a controller moves the token KL's coefficient by the KL of all trained tokens.
    """
    clip = scoring.clipping
    has_advantage = scoring.advantage is not AdvantageKind.none
    shape, advantages, row_weights = credit_rules(scoring, max_completion_len=max_completion_len)
    selection = scoring.token_selection
    from_sampler = scoring.behavior_logprobs_source in (BehaviorSource.sampler, BehaviorSource.vllm)
    bypass = from_sampler and scoring.mismatch.mode is MismatchMode.bypass
    return Method(
        shape=shape,
        advantages=advantages,
        soft=scoring.advantage is AdvantageKind.soft,
        row_weights=row_weights,
        needs_behaviour_logp=needs_behaviour_logp(scoring),
        ratio=_ratio(scoring.ratio_level),
        objective=_objective(scoring),
        selection=None if selection.kind is TokenSelection.all or not has_advantage else selection,
        coefficients=_coefficients(scoring.reduction, max_completion_len),
        kl=_kl(scoring.kl_estimator),
        listwise_scale=listwise_scale(scoring, score_mode=score_mode, max_completion_len=max_completion_len),
        group_loss=lambda targets, scores: GROUP_LOSSES[scoring.group_loss](
            targets, scoring.weighting.q_temperature, scores
        ),
        listwise_clip=clip if clip.use_clip_objective and not has_advantage else None,
        entropy_coef=scoring.entropy_coef,
        mismatch=_mismatch(scoring) if from_sampler and not bypass else None,
        raw_mismatch=partial(raw_mismatch, mode=scoring.mismatch.mode),
        ratio_from_sampler=bypass,
        skips_silent_groups=scoring.batching.skip_zero_signal and not (moves_kl_beta or _needs_every_token(scoring)),
    )


def _needs_every_token(scoring: ScoringSettings) -> bool:
    """Whether a completion without credit still acts on the update.

    The token KL and the entropy bonus act on every trained token; a selection ranks all of them; `micro_batch` divides by the
    tokens of a slice and the number of slices; the regularised reward makes credit of log-probabilities.
    """
    return (
        scoring.kl_beta > 0
        or scoring.entropy_coef > 0
        or scoring.token_selection.kind is not TokenSelection.all
        or scoring.reduction is Reduction.micro_batch
        or scoring.advantage is AdvantageKind.soft
    )


def listwise_scale(scoring: ScoringSettings, *, score_mode: ScoreMode, max_completion_len: int) -> float:
    """Factor of the listwise term: lambda, times L_s / T_max where ``listwise_lengths`` says so."""
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


def _kl(estimator: KlEstimator) -> Callable[[Tensor, Tensor], Tensor]:
    if estimator is KlEstimator.k3_is:
        return kl_k3_is
    return lambda divergence, _ratio: KL_ESTIMATORS[estimator](divergence)


def needs_behaviour_logp(scoring: ScoringSettings) -> bool:
    """Whether credit or the listwise term looks at the log-probabilities that the sampler reported."""
    return (
        scoring.advantage is AdvantageKind.soft
        or scoring.shaping.kind is Shaping.unlikeliness
        or scoring.row_weights.kind is RowWeighting.answer_entropy
        or (scoring.group_loss is GroupLoss.importance_likelihood and scoring.weighting.listwise_coef > 0)
    )


def _objective(scoring: ScoringSettings) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    clip, surrogate = scoring.clipping, scoring.surrogate
    if surrogate.kind is Surrogate.weighted_likelihood:
        return partial(weighted_likelihood_objective, cap=surrogate.ratio_cap)
    if surrogate.kind is Surrogate.soft_gate:
        gate = partial(
            soft_gate_objective,
            positive_temperature=surrogate.positive_temperature,
            negative_temperature=surrogate.negative_temperature,
        )
        return lambda ratio, _logp, advantage: gate(ratio, advantage)
    if not clip.use_clip_objective:
        return lambda ratio, _logp, advantage: plain_objective(ratio, advantage)
    bounded = partial(clipped_objective, low=clip.clip_range, high=upper_clip(clip), delta=clip.clip_delta)
    return lambda ratio, _logp, advantage: clip.clip_objective_coef * bounded(ratio, advantage)


def _coefficients(reduction: Reduction, max_completion_len: int) -> Callable[[Tensor, StepCounts], Tensor]:
    return {
        Reduction.token: token_coefficients,
        Reduction.sequence: sequence_coefficients,
        Reduction.constant: partial(constant_coefficients, max_length=max_completion_len),
        Reduction.micro_batch: micro_batch_coefficients,
    }[reduction]


def _mismatch(scoring: ScoringSettings) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    settings = scoring.mismatch
    return partial(mismatch_weights, mode=settings.mode, cap=settings.cap, floor=settings.floor)

"""`scoring`: the field's methods, each by what it changes of the four axes. ``scoring`` has the base and the four oldest."""

from dataclasses import dataclass, field

from maxent_grpo.config.scoring import ScoringConfig, clipping
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    GroupLoss,
    RatioLevel,
    Reduction,
    RowWeighting,
    Shaping,
    Surrogate,
    TokenSelection,
)
from maxent_grpo.training.types.credit import (
    DynamicSamplingSettings,
    RowWeightSettings,
    ShapingSettings,
    SurrogateSettings,
    TokenSelectionSettings,
)
from maxent_grpo.training.types.runtime import ClipSettings
from maxent_grpo.training.types.weighting import WeightingSettings


def _listwise(coefficient: float) -> WeightingSettings:
    return WeightingSettings(listwise_coef=coefficient)


def _unclipped() -> ClipSettings:
    return clipping(use_clip_objective=False)


@dataclass(slots=True)
class BnpoScoringConfig(ScoringConfig):
    """BNPO: GRPO's advantages, tokens averaged over each slice and slices over the step; depends on how a step is cut."""

    advantage: AdvantageKind = AdvantageKind.group_std
    reduction: Reduction = Reduction.micro_batch


@dataclass(slots=True)
class DapoScoringConfig(ScoringConfig):
    """DAPO (arXiv 2503.14476): higher upper clip, mean over all tokens, prompts without signal replaced by others.

    The overlong penalty is off, because its buffer depends on the length limit: set `scoring.shaping.overlong_buffer` to a
    fifth of `generation.max_completion_len`, as the paper does with 4096 of 20480 tokens.
    """

    advantage: AdvantageKind = AdvantageKind.group_std
    reduction: Reduction = Reduction.token
    clipping: ClipSettings = field(default_factory=lambda: clipping(0.2, 0.28))
    dynamic_sampling: DynamicSamplingSettings = field(default_factory=lambda: DynamicSamplingSettings(enabled=True))


@dataclass(slots=True)
class RlooScoringConfig(ScoringConfig):
    """RLOO (arXiv 2402.14740): the mean of the other completions as baseline, one term per completion, no clip."""

    advantage: AdvantageKind = AdvantageKind.leave_one_out
    clipping: ClipSettings = field(default_factory=_unclipped)


@dataclass(slots=True)
class ReinforcePpScoringConfig(ScoringConfig):
    """REINFORCE++ with a group baseline (arXiv 2501.03262): centred by the group, whitened over the rollout's tokens."""

    advantage: AdvantageKind = AdvantageKind.whitened
    reduction: Reduction = Reduction.token


@dataclass(slots=True)
class GspoScoringConfig(ScoringConfig):
    """GSPO (arXiv 2507.18071): one length-normalised ratio per completion, clipped far more narrowly."""

    advantage: AdvantageKind = AdvantageKind.group_std
    ratio_level: RatioLevel = RatioLevel.sequence
    reduction: Reduction = Reduction.sequence
    clipping: ClipSettings = field(default_factory=lambda: clipping(3e-4, 4e-4))


@dataclass(slots=True)
class CispoScoringConfig(ScoringConfig):
    """CISPO (arXiv 2506.13585): capped importance weights times log pi, so that no token loses its gradient."""

    advantage: AdvantageKind = AdvantageKind.group_std
    reduction: Reduction = Reduction.token
    surrogate: SurrogateSettings = field(default_factory=lambda: SurrogateSettings(kind=Surrogate.weighted_likelihood))


@dataclass(slots=True)
class SapoScoringConfig(ScoringConfig):
    """SAPO (arXiv 2511.20347): a smooth gate on the ratio in place of the clip."""

    advantage: AdvantageKind = AdvantageKind.group_std
    reduction: Reduction = Reduction.sequence
    surrogate: SurrogateSettings = field(default_factory=lambda: SurrogateSettings(kind=Surrogate.soft_gate))


@dataclass(slots=True)
class MaxEntCenteredScoringConfig(ScoringConfig):
    """Weighted likelihood against uniform weights, kappa (w - 1/n): Dr.GRPO as tau grows, sharper below."""

    advantage: AdvantageKind = AdvantageKind.none
    group_loss: GroupLoss = GroupLoss.centred_likelihood
    weighting: WeightingSettings = field(default_factory=lambda: _listwise(1.0))
    clipping: ClipSettings = field(default_factory=_unclipped)


@dataclass(slots=True)
class MaxEntIsScoringConfig(ScoringConfig):
    """Weighted likelihood with self-normalised importance weights w / mu: the forward-KL projection on the target."""

    advantage: AdvantageKind = AdvantageKind.none
    group_loss: GroupLoss = GroupLoss.importance_likelihood
    weighting: WeightingSettings = field(default_factory=lambda: _listwise(1.0))
    clipping: ClipSettings = field(default_factory=_unclipped)


@dataclass(slots=True)
class MaxEntCondScoringConfig(ScoringConfig):
    """Dr.GRPO plus the cross-entropy from uniform to the policy among the right completions of each group."""

    group_loss: GroupLoss = GroupLoss.conditional
    weighting: WeightingSettings = field(default_factory=lambda: _listwise(1.0))


@dataclass(slots=True)
class SoftScoringConfig(ScoringConfig):
    """Policy gradient on the entropy- and KL-regularised reward r / T_q - tau s + beta (s_ref - s): the listwise fixed point."""

    advantage: AdvantageKind = AdvantageKind.soft


@dataclass(slots=True)
class GvpoScoringConfig(ScoringConfig):
    """GVPO (arXiv 2504.19599): least squares on the optimality condition kappa s = beta s_ref + r / T_q, centred by group."""

    advantage: AdvantageKind = AdvantageKind.none
    group_loss: GroupLoss = GroupLoss.squared_residual
    weighting: WeightingSettings = field(default_factory=lambda: _listwise(1.0))
    clipping: ClipSettings = field(default_factory=_unclipped)


@dataclass(slots=True)
class XdrScoringConfig(ScoringConfig):
    """xDr.GRPO: Dr.GRPO with tempered aggregation, row weights n softmax(A T / (T_max tau)) within each group."""

    row_weights: RowWeightSettings = field(default_factory=lambda: RowWeightSettings(kind=RowWeighting.tempered))


@dataclass(slots=True)
class DrGrpoScaledScoringConfig(ScoringConfig):
    """The control of xdr: the same step size for each prompt, the balance within its group as in Dr.GRPO."""

    row_weights: RowWeightSettings = field(default_factory=lambda: RowWeightSettings(kind=RowWeighting.prompt_scaled))


@dataclass(slots=True)
class SeedGrpoScoringConfig(ScoringConfig):
    """SEED-GRPO (arXiv 2505.12346): advantages discounted where the group's answers are uncertain."""

    row_weights: RowWeightSettings = field(default_factory=lambda: RowWeightSettings(kind=RowWeighting.answer_entropy))


@dataclass(slots=True)
class TokenMaxEntScoringConfig(ScoringConfig):
    """Dr.GRPO with a token-entropy bonus in the loss: the usual way to ask for entropy, and the baseline of maxent."""

    entropy_coef: float = 0.001


@dataclass(slots=True)
class UniquenessScoringConfig(ScoringConfig):
    """Uniqueness-aware rewards (arXiv 2601.08763): completions with the same right answer share one reward."""

    shaping: ShapingSettings = field(default_factory=lambda: ShapingSettings(kind=Shaping.uniqueness))


@dataclass(slots=True)
class UnlikelinessScoringConfig(ScoringConfig):
    """Unlikeliness reward (arXiv 2506.02355): right answers count less the likelier they were."""

    shaping: ShapingSettings = field(default_factory=lambda: ShapingSettings(kind=Shaping.unlikeliness))


@dataclass(slots=True)
class PassKScoringConfig(ScoringConfig):
    """Pass@k training (arXiv 2508.10751): the reward of a set of k completions is whether one of them is right."""

    advantage: AdvantageKind = AdvantageKind.pass_at_k


@dataclass(slots=True)
class ClipCovScoringConfig(ScoringConfig):
    """Clip-Cov (arXiv 2505.22617): a few tokens of high covariance between advantage and log-prob are left out."""

    advantage: AdvantageKind = AdvantageKind.group_std
    reduction: Reduction = Reduction.token
    token_selection: TokenSelectionSettings = field(
        default_factory=lambda: TokenSelectionSettings(kind=TokenSelection.clip_cov)
    )


@dataclass(slots=True)
class KlCovScoringConfig(ScoringConfig):
    """KL-Cov (arXiv 2505.22617): no clip; the tokens of highest covariance are held near the behaviour policy."""

    advantage: AdvantageKind = AdvantageKind.group_std
    reduction: Reduction = Reduction.token
    clipping: ClipSettings = field(default_factory=_unclipped)
    token_selection: TokenSelectionSettings = field(
        default_factory=lambda: TokenSelectionSettings(kind=TokenSelection.kl_cov)
    )


@dataclass(slots=True)
class HighEntropyTokensScoringConfig(ScoringConfig):
    """Policy gradient on the most uncertain fifth of the step's tokens only (arXiv 2506.01939)."""

    advantage: AdvantageKind = AdvantageKind.group_std
    reduction: Reduction = Reduction.token
    clipping: ClipSettings = field(default_factory=lambda: clipping(0.2, 0.28))
    token_selection: TokenSelectionSettings = field(
        default_factory=lambda: TokenSelectionSettings(kind=TokenSelection.high_entropy)
    )

"""`scoring`: the method. Each option sets four axes: credit, ratio and clipping, reduction, regularisers."""

from dataclasses import dataclass, field

from maxent_grpo.training.types.choices import (
    AdvantageKind,
    BehaviorSource,
    EntropyMode,
    EqualGroups,
    GroupLoss,
    KlEstimator,
    RatioLevel,
    Reduction,
    ReferenceSource,
    Truncation,
)
from maxent_grpo.training.types.credit import (
    DynamicSamplingSettings,
    RowWeightSettings,
    ShapingSettings,
    SurrogateSettings,
    TokenSelectionSettings,
)
from maxent_grpo.training.types.runtime import ClipSettings, MismatchSettings, ReferenceSync
from maxent_grpo.training.types.weighting import WeightingSettings


@dataclass(slots=True)
class BatchingConfig:
    """How sequences are cut for scoring; none of it changes the loss but the tail window, and slices under `reduction=micro_batch`."""

    logprob_chunk_size: int = 0
    """Sequences in one forward pass inside a slice; 0 is the whole slice [sequences]."""
    score_slice: int = 0
    """Most sequences assembled and back-propagated together; 0 is all of a loader batch, as far as max_tokens lets them [sequences]."""
    max_tokens: int = 768
    """Most tokens that a slice feeds to the model, which bounds the memory of activations: a slice ends where the next whole group would not fit, and a group is cut only where it alone is larger, into parts with as many tokens of completions as of the prompt at least. A CPU gains nothing above 512; a GPU wants some thousands. 0 is no limit [tokens]."""
    score_tail_tokens: int | None = None
    """Train only the last N tokens of each completion; null trains all [tokens]."""
    slice_prefetch: int = 0
    """Slices assembled ahead in a background thread; 0 is off [slices]."""
    prompt_cache_size: int = 1024
    """Entries of the cache of tokenised prompts; 0 is off [prompts]."""
    share_prompts: bool = True
    """Score the completions of a group behind one copy of their prompt; false pads every sequence with its own copy."""
    skip_zero_signal: bool = True
    """Leave out of scoring the groups whose gradient is exactly zero: those without credit, under a method whose loss has no other term on them. The loss stays the same; metrics over scored tokens cover the other groups."""


def clipping(low: float = 0.2, high: float | None = None, *, use_clip_objective: bool = True) -> ClipSettings:
    """Clip settings of an option."""
    return ClipSettings(
        clip_range=low,
        clip_range_high=high,
        use_clip_objective=use_clip_objective,
        clip_objective_coef=1.0,
        clip_adv_baseline=None,
    )


@dataclass(slots=True)
class ScoringConfig:
    """Fields that every method has; an option changes only what makes it that method."""

    advantage: AdvantageKind = AdvantageKind.group_mean
    """Credit: `group_mean` is r - mean (Dr.GRPO), `group_std` divides by the group's standard deviation (GRPO), `batch_std` by the rollout's, `leave_one_out` takes the mean of the others (RLOO), `whitened` standardises over the rollout's tokens (REINFORCE++), `pass_at_k` rewards sets of pass_k completions, `soft` centres r / q_temperature - tau s + beta (s_ref - s), `function` calls advantage_function, `none` has no advantage term."""
    advantage_function: str | None = None
    """`advantage=function`: your own rule as `package.module:function`, called as f(utilities, facts) on tensors of prompts by group; see docs/add_a_method.md."""
    pass_k: int = 4
    """Size of the sets that `advantage=pass_at_k` rewards [completions]."""
    shaping: ShapingSettings = field(default_factory=ShapingSettings)
    row_weights: RowWeightSettings = field(default_factory=RowWeightSettings)
    ratio_level: RatioLevel = RatioLevel.token
    """Importance ratio per `token`, or per `sequence` (the length-normalised geometric mean)."""
    reduction: Reduction = Reduction.constant
    """Weight of a token's loss: `token` 1/N_tok, `sequence` 1/(N_seq T_i), `constant` 1/(N_seq T_max); counts are global. `micro_batch` (BNPO) is 1/N_tok of the slice over the number of slices, and so depends on how a step is cut."""
    surrogate: SurrogateSettings = field(default_factory=SurrogateSettings)
    token_selection: TokenSelectionSettings = field(default_factory=TokenSelectionSettings)
    group_loss: GroupLoss = GroupLoss.cross_entropy
    """The listwise term: `cross_entropy` to the target w, `centred_likelihood` -kappa sum (w - 1/n) s, `importance_likelihood` -sum s w/mu, `conditional` cross-entropy among the right answers, `squared_residual` of the optimality condition (GVPO)."""
    weighting: WeightingSettings = field(default_factory=WeightingSettings)
    clipping: ClipSettings = field(default_factory=clipping)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    kl_beta: float = 0.0
    """Coefficient of the token KL to the reference in the loss; 0 neither loads nor runs a reference for it."""
    kl_estimator: KlEstimator = KlEstimator.k3
    """Estimator of the token KL: with d = log pi - log pi_ref, k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d, k3_is = rho k3 with gradient through the ratio rho too, whose expected gradient is that of KL(pi || pi_ref) also off-policy."""
    entropy_coef: float = 0.0
    """Coefficient of the token-entropy bonus in the loss [per nat]."""
    policy_entropy: bool = True
    """Measure the policy's token entropy each step."""
    policy_entropy_mode: EntropyMode = EntropyMode.exact
    """`exact` over the vocabulary, or `sample`: minus the log-probability of the drawn token (a monitor only)."""
    policy_entropy_bonus_coef: float = 0.0
    """Reward-side entropy bonus: r_i += coef * std(r) * z_i, z_i the group-normalised mean token entropy."""
    equal_groups: EqualGroups = EqualGroups.keep
    """Groups whose utilities are all equal: `keep`, or `drop` from every term of the loss and from its denominators."""
    truncation: Truncation = Truncation.keep
    """Completions cut by the length limit: `keep`, `mask_loss` (stay in the group statistics), or `exclude` altogether."""
    reference_logprobs_source: ReferenceSource = ReferenceSource.auto
    """`model` (a frozen copy), `none`, or `auto`: `model` if any beta is above 0, else `none`."""
    behavior_logprobs_source: BehaviorSource = BehaviorSource.model
    """Denominator of the ratio: the trainer's own log-probs at rollout weights (`model`) or the sampler's (`sampler`, alias `vllm`)."""
    mismatch: MismatchSettings = field(default_factory=MismatchSettings)
    reference_sync: ReferenceSync = field(default_factory=ReferenceSync)
    dynamic_sampling: DynamicSamplingSettings = field(default_factory=DynamicSamplingSettings)
    allow_stale_reference_logprobs: bool = False
    """With a moving reference and several updates per rollout: true keeps the reference log-probs of sampling time, false recomputes them."""
    trl_reference_scoring: bool = False
    """Score with one padded row per sequence and a first-end-token mask, as TRL does."""


@dataclass(slots=True)
class DrGrpoScoringConfig(ScoringConfig):
    """Dr.GRPO (arXiv 2503.20783): centred rewards, constant length normalisation, token ratios."""


@dataclass(slots=True)
class GrpoScoringConfig(ScoringConfig):
    """GRPO (arXiv 2402.03300): rewards normalised by the group's standard deviation, mean over each sequence's tokens."""

    advantage: AdvantageKind = AdvantageKind.group_std
    reduction: Reduction = Reduction.sequence


@dataclass(slots=True)
class MaxEntScoringConfig(ScoringConfig):
    """Maximum-entropy GRPO: the Dr.GRPO term plus lambda times the listwise cross-entropy to the tempered target."""

    weighting: WeightingSettings = field(default_factory=lambda: WeightingSettings(listwise_coef=0.3))


@dataclass(slots=True)
class MaxEntListwiseScoringConfig(ScoringConfig):
    """The listwise term alone: cross-entropy from w, proportional to q^(1/(tau+beta)) pi_ref^(beta/(tau+beta)), to the policy over the group."""

    advantage: AdvantageKind = AdvantageKind.none
    weighting: WeightingSettings = field(default_factory=lambda: WeightingSettings(listwise_coef=1.0))
    clipping: ClipSettings = field(default_factory=lambda: clipping(use_clip_objective=False))

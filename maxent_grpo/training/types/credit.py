"""Settings of the credit, clip and sampling rules of a method. Pure data: configuration nodes and arguments alike."""

from dataclasses import dataclass

from maxent_grpo.training.types.choices import RowWeighting, Shaping, Surrogate, TokenSelection


@dataclass(slots=True)
class ShapingSettings:
    """What happens to a utility before advantages are taken."""

    kind: Shaping = Shaping.none
    """`uniqueness` divides a positive utility by how often its answer occurs in the group, `unlikeliness` discounts likely completions."""
    uniqueness_power: float = 1.0
    """`uniqueness`: r / n^power, n the completions of the group with the same answer; 0 changes nothing."""
    unlikeliness_discount: float = 0.25
    """`unlikeliness`: r (1 - discount * rank / n), rank 0 the least likely of n; 0 changes nothing."""
    overlong_buffer: int = 0
    """Last tokens before generation.max_completion_len over which a penalty grows from 0 to overlong_weight; 0 is off, and DAPO takes a fifth of the limit, 4096 of 20480 [tokens]."""
    overlong_weight: float = 1.0
    """Penalty of a completion at the length limit [reward units]."""


@dataclass(slots=True)
class RowWeightSettings:
    """Factors of the advantages: `uniform` is 1, `tempered` n softmax(A T / (T_max tau)), `prompt_scaled` its share per prompt, `answer_entropy` a discount of uncertain prompts."""

    kind: RowWeighting = RowWeighting.uniform
    """Which rule sets the factors."""
    tau: float | None = 0.05
    """Temperature of `tempered` and `prompt_scaled`; 0 keeps the best completions only, null is infinite: uniform."""
    mode_adaptive: bool = False
    """Divide tau by log(1 + number of different right answers in the group)."""
    entropy_alpha: float = 1.0
    """`answer_entropy`: the factor is 1 / (1 + alpha H / log G), H the entropy of the group's answers."""


@dataclass(slots=True)
class SurrogateSettings:
    """What is maximised per token: `clip` min(rho A, clip(rho) A), `weighted_likelihood` sg(min(rho, cap)) A log pi, `soft_gate` a sigmoid of rho."""

    kind: Surrogate = Surrogate.clip
    """Which rule; scoring.clipping belongs to `clip`."""
    ratio_cap: float = 5.0
    """`weighted_likelihood`: largest importance ratio kept, at least 1 (the ratio itself, not its distance from 1)."""
    positive_temperature: float = 1.0
    """`soft_gate`: steepness for tokens with a positive advantage."""
    negative_temperature: float = 1.05
    """`soft_gate`: steepness for tokens with a negative advantage."""


@dataclass(slots=True)
class TokenSelectionSettings:
    """Which tokens train the policy term, from statistics of the whole step."""

    kind: TokenSelection = TokenSelection.all
    """`clip_cov` leaves out some tokens of high covariance, `kl_cov` holds the highest near the behaviour policy, `high_entropy` trains only the most uncertain."""
    share: float = 2e-4
    """`clip_cov`, `kl_cov`: share of the step's tokens that is selected, at least one token."""
    covariance_low: float = 1.0
    """`clip_cov`: tokens with a covariance above this may be left out."""
    covariance_high: float = 5.0
    """`clip_cov`: and below this."""
    kl_coef: float = 1.0
    """`kl_cov`: coefficient of |log pi - log pi_old| on the selected tokens."""
    entropy_quantile: float = 0.8
    """`high_entropy`: quantile of the step's token entropies from which tokens train."""
    count_kept_only: bool = False
    """`clip_cov`, `high_entropy` with `reduction=token`: divide the loss by the tokens that train rather than by all; a KL or entropy term is divided alike."""


@dataclass(slots=True)
class DynamicSamplingSettings:
    """Prompts whose groups have equal utilities give way to others, so that every group of a step carries a signal."""

    enabled: bool = False
    """Keep only groups whose utilities, before shaping, differ, drawing further prompts until a rollout is full."""
    max_refill: int = 10
    """Further draws at most; then the step is made with the groups there are, and that is counted [rounds]."""
    carry_over: bool = True
    """Keep surplus groups for the next rollout, with their own log-probs, and store them in checkpoints; false drops them, counted."""

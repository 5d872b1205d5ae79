"""Settings of the listwise target weights. Pure data: the same object is a configuration node and an argument."""

from dataclasses import dataclass

from maxent_grpo.training.types.choices import NeutralGroups, ScoreMode


@dataclass(slots=True)
class WeightingSettings:
    """Target weights over a group: w_i proportional to q_i^(1/(tau+beta)) * pi_ref_i^(beta/(tau+beta))."""

    tau: float = 0.1
    """Temperature of the target: weight of the entropy of w. Larger is flatter; 0 with beta > 0 is the KL-regularised target."""
    beta: float = 0.0
    """Listwise pull of the target towards the reference; independent of the token KL `scoring.kl_beta`."""
    q_temperature: float = 1.0
    """Temperature of the utility distribution q = softmax(utilities / q_temperature) [reward units]."""
    q_epsilon: float = 1e-6
    """Floor of q: q <- (1 - K eps) q + eps, which bounds log q; 0 switches it off."""
    score_mode: ScoreMode = ScoreMode.auto
    """Sequence score of policy and reference alike: `sum` of token log-probs, `const` = sum / score_length, `mean` = sum / tokens; `auto` is `sum` up to 32 completion tokens, else `const`."""
    score_length: int = 256
    """The constant length L0 that `score_mode=const` divides by [tokens]."""
    neutral_groups: NeutralGroups = NeutralGroups.skip_all_wrong
    """Groups with equal utilities in the listwise term: `keep` all, `skip_all_wrong` (keep those that are all right), or `skip` all."""
    listwise_coef: float = 0.0
    """Coefficient lambda of the listwise cross-entropy; 0 switches the term off."""

    right_threshold: float = 0.999
    """A completion counts as right when its utility is at least this; tells all-right from all-wrong groups [reward units]."""

    @property
    def denom(self) -> float:
        """tau + beta, the denominator of the weight exponents; derived, never stored."""
        return self.tau + self.beta


@dataclass(slots=True)
class ControllerValues:
    """The coefficients that a controller may move, as one optimiser step uses them."""

    tau: float
    beta: float
    kl_beta: float

"""The method in words and in one formula: what each of its axes does, with the numbers that are set."""

from __future__ import annotations

from collections.abc import Collection

from maxent_grpo.config.controller import KL_BETA
from maxent_grpo.config.resolve import listwise_lengths, reference_source, resolve_score_mode
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.scoring import ScoringConfig
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    BehaviorSource,
    EqualGroups,
    GroupLoss,
    MismatchMode,
    RatioLevel,
    Reduction,
    RewardNormalization,
    RowWeighting,
    ScoreMode,
    Shaping,
    Surrogate,
    TokenSelection,
)
from maxent_grpo.training.types.runtime import ClipSettings

Row = tuple[str, str]

CREDIT = {
    AdvantageKind.none: "none: no advantage term",
    AdvantageKind.group_mean: "A = r - mean(r) over the group",
    AdvantageKind.group_std: "A = (r - mean(r)) / std(r) over the group",
    AdvantageKind.batch_std: "A = (r - mean(r) over the group) / std(r) over the rollout",
    AdvantageKind.leave_one_out: "A = r - mean(r) over the other completions of the group",
    AdvantageKind.whitened: "A = (a - mean(a)) / std(a) over the rollout's tokens, a = r - mean(r) over the group",
    AdvantageKind.pass_at_k: "A of a completion in sets of {pass_k} that are rewarded for a right one (r >= {right_threshold:g})",
    AdvantageKind.function: "A = {advantage_function}(r, facts) over the group",
    AdvantageKind.soft: "A = R - mean(R) over the group, R = r / {q_temperature:g} - {tau:g} s_mu + {beta:g} (s_ref - s_mu)",
}
"""The credit rule; numbers in braces are settings."""
NORMALISED = {
    RewardNormalization.sum: "r = (r - mean(r)) / std(r), the mean of the group, the deviation of the {by}",
    RewardNormalization.term: "r = sum of w_k z_k over its deviation in the batch, z_k = (r_k - mean(r_k)) / std(r_k) per term, the mean of the group, the deviation of the {by}",
}
"""What credit sees instead of the utility."""
REDUCTION = {
    Reduction.token: "1/N_tok: mean over all tokens",
    Reduction.sequence: "1/(N_seq T_i): mean over each completion's tokens, then over completions",
    Reduction.constant: "1/(N_seq T_max): sum over tokens over a constant length",
    Reduction.micro_batch: "1/(N_slices N_tok(slice)): mean over each slice's tokens, then over slices; depends on how a step is cut",
}
COEFFICIENT = {
    Reduction.token: "1/N_tok",
    Reduction.sequence: "1/(N_seq T_i)",
    Reduction.constant: "1/(N_seq T_max)",
    Reduction.micro_batch: "1/(N_slices N_tok(slice))",
}
GROUP_TERM = {
    GroupLoss.cross_entropy: ("+", "CE(w, softmax(s))"),
    GroupLoss.centred_likelihood: ("-", "(tau + beta) sum (w - 1/n) s"),
    GroupLoss.importance_likelihood: ("-", "sum v s"),
    GroupLoss.conditional: ("+", "CE(1/c, softmax(s) over the c right)"),
    GroupLoss.squared_residual: ("+", "1/2 sum centred((tau + beta) s - beta s_ref - r / q_temperature)^2"),
}
"""Sign and form of the listwise term of one group."""
TARGETED = (GroupLoss.cross_entropy, GroupLoss.centred_likelihood, GroupLoss.importance_likelihood)
"""Group losses that move towards the target weights w."""


def loss_formula(scoring: ScoringConfig, max_completion_len: int, adapted: Collection[str] = ()) -> str:
    """The loss in one line, with the coefficients that are on; sums run over the trained tokens of the step.

    A KL coefficient among the ``adapted`` ones is written by its name, since a controller moves it.
    """
    clip = scoring.clipping
    coefficient = COEFFICIENT[scoring.reduction]
    if _selects(scoring) and scoring.token_selection.count_kept_only:
        coefficient = coefficient.replace("N_tok", "N_kept")
    terms: list[str] = []
    if scoring.advantage is not AdvantageKind.none:
        terms.append(f"- {_policy_term(scoring, coefficient)}")
    if scoring.weighting.listwise_coef > 0:
        mode = resolve_score_mode(scoring.weighting.score_mode, max_completion_len)
        factor = _factor(scoring, mode, max_completion_len)
        sign, form = GROUP_TERM[scoring.group_loss]
        terms.append(f"{sign} {factor}mean_groups {form}")
    if scoring.advantage is AdvantageKind.none and clip.use_clip_objective:
        terms.append(f"- {_times(clip.clip_objective_coef)}mean_groups sum min(rho_seq a, clip(rho_seq) a), a = w - b")
    if scoring.kl_beta > 0 or KL_BETA in adapted:
        factor = "kl_beta" if KL_BETA in adapted else f"{scoring.kl_beta:g}"
        terms.append(f"+ {factor} sum {coefficient} KL_{scoring.kl_estimator}(pi, pi_ref)")
    if scoring.entropy_coef > 0:
        terms.append(f"- {scoring.entropy_coef:g} sum {coefficient} H")
    return f"L = {' '.join(terms).removeprefix('+ ')}" if terms else "L = 0"


def _policy_term(scoring: ScoringConfig, coefficient: str) -> str:
    selection = scoring.token_selection
    objective = _surrogate(scoring)
    if selection.kind is TokenSelection.kl_cov:
        objective = f"({objective} - {_times(selection.kl_coef)}1[held] |log rho|)"
    if selection.kind in (TokenSelection.clip_cov, TokenSelection.high_entropy):
        objective = f"1[kept] {objective}"
    clip = scoring.clipping
    scaled = scoring.surrogate.kind is Surrogate.clip and clip.use_clip_objective
    return f"{_times(clip.clip_objective_coef) if scaled else ''}sum {coefficient} {objective}"


def _surrogate(scoring: ScoringConfig) -> str:
    """What is maximised per token, with A the completion's advantage."""
    ratio = "rho" if scoring.ratio_level is RatioLevel.token else "rho_seq"
    match scoring.surrogate.kind:
        case Surrogate.weighted_likelihood:
            return f"sg(min({ratio}, {scoring.surrogate.ratio_cap:g})) A log pi"
        case Surrogate.soft_gate:
            return f"4/t sigmoid(t ({ratio} - 1)) A"
        case Surrogate.clip:
            return f"min({ratio} A, clip({ratio}) A)" if scoring.clipping.use_clip_objective else f"{ratio} A"


def _factor(scoring: ScoringConfig, mode: ScoreMode, max_completion_len: int) -> str:
    """The factor of the listwise term as written in the formula."""
    coefficient = _times(scoring.weighting.listwise_coef)
    lengths = listwise_lengths(scoring, mode, max_completion_len)
    return coefficient if lengths is None else f"{coefficient}({lengths[0]}/{lengths[1]}) "


def _times(factor: float) -> str:
    """A factor in front of what it multiplies; nothing for 1."""
    return "" if factor == 1 else f"{factor:g} "


def method_rows(config: RootConfig) -> list[Row]:
    """Every axis of the method that is on, as label and text."""
    scoring = config.scoring
    source = scoring.reference_logprobs_source
    origin = "" if source == reference_source(config) else f", from {source}"
    return [
        ("loss", loss_formula(scoring, config.generation.max_completion_len, config.controller.adapted())),
        *_credit_rows(config),
        ("ratio and clip", _ratio(scoring)),
        *_mismatch_rows(scoring),
        *_selection_rows(scoring),
        ("reduction", REDUCTION[scoring.reduction]),
        *_listwise_rows(config),
        ("regularisers", f"token KL {scoring.kl_beta:g}, entropy {scoring.entropy_coef:g}, "
         f"entropy in the reward {scoring.policy_entropy_bonus_coef:g}"),
        ("reference", f"{reference_source(config)}{origin}"),
        ("truncation", str(scoring.truncation)),
        *_sampling_rows(scoring),
    ]  # fmt: skip


def _credit_rows(config: RootConfig) -> list[Row]:
    """Utilities, advantages and their factors, in the order in which they follow from each other."""
    scoring, weighting = config.scoring, config.scoring.weighting
    shaping, weights = scoring.shaping, scoring.row_weights
    numbers = {name: getattr(weighting, name) for name in ("right_threshold", "q_temperature", "tau", "beta")}
    numbers |= {"pass_k": scoring.pass_k, "advantage_function": scoring.advantage_function}
    rows: list[Row] = []
    if shaping.kind is Shaping.uniqueness:
        rows.append(
            ("shaping", f"r / n^{shaping.uniqueness_power:g} where r > 0, n completions of the group with that answer")
        )
    if shaping.kind is Shaping.unlikeliness:
        rows.append(
            ("shaping", f"r (1 - {shaping.unlikeliness_discount:g} rank / n), rank 0 the least likely of the group's n")
        )
    if shaping.overlong_buffer > 0:
        start = config.generation.max_completion_len - shaping.overlong_buffer
        rows.append(
            (
                "overlong",
                f"r falls by up to {shaping.overlong_weight:g} from {start} to {start + shaping.overlong_buffer} tokens",
            )
        )
    if config.reward.normalize is not RewardNormalization.none:
        rows.append(("normalised", NORMALISED[config.reward.normalize].format(by=config.reward.normalize_by)))
    rows.append(("credit", CREDIT[scoring.advantage].format(**numbers)))
    tau = "infinite" if weights.tau is None else f"{weights.tau:g}"
    if weights.mode_adaptive:
        tau += " / log(1 + different right answers of the group)"
    factor = {
        RowWeighting.uniform: None,
        RowWeighting.tempered: f"A times v, v = n softmax(A T_i / (T_max tau)) over the group, tau {tau}",
        RowWeighting.prompt_scaled: f"A times <v A, A> / <A, A>, v = n softmax(A T_i / (T_max tau)) over the group, tau {tau}",
        RowWeighting.answer_entropy: f"A / (1 + {_times(weights.entropy_alpha)}H / log G), H the entropy of the group's answers",
    }[weights.kind]
    return rows if factor is None else [*rows, ("row weights", factor)]


def _clip_interval(clip: ClipSettings) -> str:
    high = clip.clip_range if clip.clip_range_high is None else clip.clip_range_high
    cap = "" if clip.clip_delta is None else f", capped at {clip.clip_delta:g}"
    return f"[1 - {clip.clip_range:g}, 1 + {high:g}]{cap}"


def _ratio(scoring: ScoringConfig) -> str:
    level = "per token" if scoring.ratio_level is RatioLevel.token else "per sequence, to the power 1/T_i"
    clip, surrogate = scoring.clipping, scoring.surrogate
    clipping = f"clipped to {_clip_interval(clip)}" if clip.use_clip_objective else "not clipped"
    if scoring.advantage is not AdvantageKind.none and surrogate.kind is Surrogate.weighted_likelihood:
        clipping = f"a weight of log pi, at most {surrogate.ratio_cap:g}"
    if scoring.advantage is not AdvantageKind.none and surrogate.kind is Surrogate.soft_gate:
        clipping = (
            f"gated with t {surrogate.positive_temperature:g} where A > 0, else {surrogate.negative_temperature:g}"
        )
    return f"{level}, {clipping}; behaviour log-probs from {scoring.behavior_logprobs_source}"


def _mismatch_rows(scoring: ScoringConfig) -> list[Row]:
    mismatch = scoring.mismatch
    if scoring.behavior_logprobs_source is BehaviorSource.model or scoring.advantage is AdvantageKind.none:
        return []
    if mismatch.mode is MismatchMode.bypass:
        return [("mismatch", "bypass: the sampler's log-probs stand in the ratio, uncorrected")]
    level, _, rule = mismatch.mode.partition("_")
    what = {
        "token": "of each token",
        "sequence": "of each completion, the product over its tokens",
        "geometric": "of each completion, the geometric mean over its tokens",
    }[level]
    if rule == "truncate":
        bound = f"at most {mismatch.cap:g}"
    elif level == "sequence":
        bound = f"0 above {mismatch.cap:g}"
    else:
        bound = f"0 outside [{mismatch.floor:g}, {mismatch.cap:g}]"
    return [("mismatch", f"J times pi_old / mu {what}, {bound}")]


def _selects(scoring: ScoringConfig) -> bool:
    """Whether some trained tokens are treated differently from others."""
    return scoring.advantage is not AdvantageKind.none and scoring.token_selection.kind is not TokenSelection.all


def _selection_rows(scoring: ScoringConfig) -> list[Row]:
    selection = scoring.token_selection
    if not _selects(scoring):
        return []
    divisor = f"the loss divides by {'the tokens that are kept' if selection.count_kept_only else 'all tokens'}"
    between = f"({selection.covariance_low:g}, {selection.covariance_high:g})"
    text = {
        TokenSelection.clip_cov: f"clip_cov: leaves out {selection.share:g} of the step's tokens, drawn where the covariance of A "
        f"and log pi is in {between}; {divisor}",
        TokenSelection.kl_cov: f"kl_cov: holds the {selection.share:g} of the step's tokens with the largest covariance of A and "
        f"log pi, with coefficient {selection.kl_coef:g}",
        TokenSelection.high_entropy: f"high_entropy: keeps tokens from the {selection.entropy_quantile:g} quantile of the step's "
        f"entropies; {divisor}",
    }[selection.kind]  # fmt: skip
    return [("tokens", text)]


def _listwise_rows(config: RootConfig) -> list[Row]:
    """The group loss, its target and the score that both look at."""
    scoring, weighting = config.scoring, config.scoring.weighting
    max_len = config.generation.max_completion_len
    soft, on = scoring.advantage is AdvantageKind.soft, weighting.listwise_coef > 0
    clipped = scoring.advantage is AdvantageKind.none and scoring.clipping.use_clip_objective
    targeted = (on and scoring.group_loss in TARGETED) or clipped
    rows: list[Row] = []
    if on and scoring.group_loss is not GroupLoss.cross_entropy:
        rows.append(("group loss", str(scoring.group_loss)))
    if targeted:
        rows.append(
            ("listwise weights", "w ~ q^(1/(tau+beta)) pi_ref^(beta/(tau+beta)), q = softmax(r / q_temperature)")
        )
    if on and scoring.group_loss is GroupLoss.importance_likelihood:
        rows.append(("", "v ~ w / mu over the group, mu the probability of the completion when it was sampled"))
    numbers = f"tau {weighting.tau:g}, beta {weighting.beta:g}, q_temperature {weighting.q_temperature:g}"
    neutral = f"neutral groups: {weighting.neutral_groups}"
    if targeted or (on and scoring.group_loss is GroupLoss.squared_residual):
        rows.append(("" if targeted else "coefficients", f"{numbers}, {neutral}"))
    elif on:
        rows.append(("right answers", f"r >= {weighting.right_threshold:g}, {neutral}"))
    if on or soft:
        mode = resolve_score_mode(weighting.score_mode, max_len)
        divisor = {ScoreMode.const: f" / {weighting.score_length}", ScoreMode.mean: " / T_i"}.get(mode, "")
        origin = f", from auto with max_completion_len={max_len}" if weighting.score_mode is ScoreMode.auto else ""
        rows.append(("sequence score", f"{mode}: s = sum of log-probs{divisor}{origin}"))
    return rows


def _sampling_rows(scoring: ScoringConfig) -> list[Row]:
    sampling, rows = scoring.dynamic_sampling, list[Row]()
    if scoring.equal_groups is EqualGroups.drop:
        rows.append(("equal groups", "left out of the loss and of its denominators"))
    if not sampling.enabled:
        return rows
    surplus = "kept for the next rollout" if sampling.carry_over else "dropped"
    return [
        *rows,
        ("dynamic sampling", f"groups with equal utilities are replaced, in up to {sampling.max_refill} further draws; surplus "
         f"groups are {surplus}")
    ]  # fmt: skip

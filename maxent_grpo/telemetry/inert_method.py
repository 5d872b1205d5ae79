"""Settings of the method that have no effect in the combination at hand: credit, surrogate, tokens, target, regularisers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from maxent_grpo.config.controller import KL_BETA
from maxent_grpo.config.resolve import LIKELIHOODS, has_unit_ratio, resolve_score_mode, uses_temperature
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.scoring import ScoringConfig
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    GroupLoss,
    RowWeighting,
    ScoreMode,
    Shaping,
    Surrogate,
    TokenSelection,
)
from maxent_grpo.training.types.weighting import WeightingSettings

CLIP_RANGE = "scoring.clipping.clip_range"

UNIT_RATIO = "with one update per rollout the ratio is 1"

Rule = tuple[str, list[str]]
"""Why settings have no effect, and which."""


def under(prefix: str, node: type) -> list[str]:
    """The dotted paths of a node's fields."""
    return [f"{prefix}.{field.name}" for field in fields(node)]


def _clipping_rules(config: RootConfig) -> Iterator[Rule]:
    scoring = config.scoring
    clip = [f"scoring.clipping.{name}" for name in ("clip_range", "clip_range_high", "clip_delta")]
    extras = [f"scoring.clipping.{name}" for name in ("clip_objective_coef", "clip_adv_baseline")]
    if scoring.advantage is not AdvantageKind.none and scoring.surrogate.kind is not Surrogate.clip:
        yield (
            f"scoring.surrogate.kind={scoring.surrogate.kind} does not clip",
            [*clip, *extras, "scoring.clipping.use_clip_objective"],
        )
        return
    if not scoring.clipping.use_clip_objective:
        yield "scoring.clipping.use_clip_objective is false, so that nothing is clipped", [*clip, *extras]
        return
    if has_unit_ratio(config):
        yield UNIT_RATIO, clip
    if scoring.advantage is not AdvantageKind.none:
        yield "only the clipped term of listwise methods (scoring.advantage=none) has a baseline", extras[1:]


def _surrogate_rules(config: RootConfig) -> Iterator[Rule]:
    surrogate, own = config.scoring.surrogate, "scoring.surrogate"
    cap, gate = [f"{own}.ratio_cap"], [f"{own}.positive_temperature", f"{own}.negative_temperature"]
    other = f"{own}.kind={surrogate.kind} does not use it"
    if surrogate.kind is not Surrogate.weighted_likelihood:
        yield other, cap
    elif has_unit_ratio(config):
        yield UNIT_RATIO, cap
    if surrogate.kind is not Surrogate.soft_gate:
        yield other, gate
    elif has_unit_ratio(config):
        yield f"{UNIT_RATIO}, where the slope of the gate is 1 at every temperature", gate


def _credit_rules(config: RootConfig) -> Iterator[Rule]:
    scoring = config.scoring
    shaping, weights = scoring.shaping, scoring.row_weights
    if scoring.advantage is not AdvantageKind.pass_at_k:
        yield f"scoring.advantage={scoring.advantage} does not use it", ["scoring.pass_k"]
    for kind, name in ((Shaping.uniqueness, "uniqueness_power"), (Shaping.unlikeliness, "unlikeliness_discount")):
        if shaping.kind is not kind:
            yield f"scoring.shaping.kind={shaping.kind} does not use it", [f"scoring.shaping.{name}"]
    if shaping.overlong_buffer == 0:
        yield (
            "scoring.shaping.overlong_buffer is 0, so that no length is penalised",
            ["scoring.shaping.overlong_weight"],
        )
    elif shaping.overlong_weight == 0:
        yield "scoring.shaping.overlong_weight is 0", ["scoring.shaping.overlong_buffer"]
    other = f"scoring.row_weights.kind={weights.kind} does not use it"
    if weights.kind is not RowWeighting.answer_entropy:
        yield other, ["scoring.row_weights.entropy_alpha"]
    if weights.kind not in (RowWeighting.tempered, RowWeighting.prompt_scaled):
        yield other, ["scoring.row_weights.tau", "scoring.row_weights.mode_adaptive"]
    elif weights.tau == 0:
        yield "scoring.row_weights.tau is 0, and stays 0 when divided", ["scoring.row_weights.mode_adaptive"]


def _token_rules(config: RootConfig) -> Iterator[Rule]:
    selection, own = config.scoring.token_selection, "scoring.token_selection"
    users = {
        "share": (TokenSelection.clip_cov, TokenSelection.kl_cov),
        "covariance_low": (TokenSelection.clip_cov,),
        "covariance_high": (TokenSelection.clip_cov,),
        "kl_coef": (TokenSelection.kl_cov,),
        "entropy_quantile": (TokenSelection.high_entropy,),
        "count_kept_only": (TokenSelection.clip_cov, TokenSelection.high_entropy),
    }
    for name, kinds in users.items():
        if selection.kind not in kinds:
            yield f"{own}.kind={selection.kind} does not use it", [f"{own}.{name}"]
    if selection.kind is TokenSelection.kl_cov and has_unit_ratio(config):
        yield f"{UNIT_RATIO}, where |log rho| has no slope", [f"{own}.share", f"{own}.kl_coef"]


def _target_rules(config: RootConfig) -> Iterator[Rule]:
    """The target weights and the score, of the listwise term or of the soft reward."""
    scoring, own = config.scoring, "scoring.weighting"
    weighting, on = scoring.weighting, scoring.weighting.listwise_coef > 0
    soft = scoring.advantage is AdvantageKind.soft
    off = "scoring.weighting.listwise_coef is 0, so that the listwise term is off"
    if not on:
        yield off, ["scoring.group_loss"]
    kept = {"listwise_coef", "right_threshold"}  # evaluation counts by the threshold, whatever the method
    if not on and soft:
        yield off, [f"{own}.q_epsilon", f"{own}.neutral_groups"]
    elif not on:
        names = under(own, WeightingSettings)
        yield off, [path for path in names if path.rpartition(".")[2] not in kept]
        return
    elif scoring.group_loss is GroupLoss.squared_residual:
        yield "scoring.group_loss=squared_residual looks at the utilities, not at q", [f"{own}.q_epsilon"]
    elif not uses_temperature(scoring):
        names = [f"{own}.{name}" for name in ("tau", "beta", "q_temperature", "q_epsilon")]
        yield f"scoring.group_loss={scoring.group_loss} has no tempered target", names
    mode = resolve_score_mode(weighting.score_mode, config.generation.max_completion_len)
    if mode is not ScoreMode.const:
        yield f"only score_mode=const divides by it, and the mode is {mode}", [f"{own}.score_length"]


def _term_rules(config: RootConfig) -> Iterator[Rule]:
    """Token-wise terms: KL, entropy, and what they are divided by."""
    scoring = config.scoring
    no_kl = scoring.kl_beta == 0 and KL_BETA not in config.controller.adapted()
    if no_kl:
        yield "scoring.kl_beta is 0, so that no KL is added to the loss", ["scoring.kl_estimator"]
    if not scoring.policy_entropy and scoring.entropy_coef == 0 and scoring.policy_entropy_bonus_coef == 0:
        yield "scoring.policy_entropy is false and no entropy bonus is on", ["scoring.policy_entropy_mode"]
    if scoring.advantage is AdvantageKind.none:
        yield "there is no advantage term (scoring.advantage=none) to take it", ["scoring.ratio_level"]
        if no_kl and scoring.entropy_coef == 0 and not _divided_alike(scoring):
            yield "no token-wise term is in the loss: no advantage, KL or entropy", ["scoring.reduction"]


def _divided_alike(scoring: ScoringConfig) -> bool:
    """Whether the listwise term takes its divisor from the reduction although it stands alone."""
    return scoring.weighting.listwise_coef > 0 and scoring.group_loss in LIKELIHOODS


def _sampling_rules(config: RootConfig) -> Iterator[Rule]:
    if not config.scoring.dynamic_sampling.enabled:
        names = [f"scoring.dynamic_sampling.{name}" for name in ("max_refill", "carry_over")]
        yield "scoring.dynamic_sampling.enabled is false", names


METHOD_RULES = (
    _clipping_rules,
    _surrogate_rules,
    _credit_rules,
    _token_rules,
    _target_rules,
    _term_rules,
    _sampling_rules,
)

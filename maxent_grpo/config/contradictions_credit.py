"""Contradictions among the rules of a method that belong to its credit, its surrogate, its tokens and its group loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from maxent_grpo.config.resolve import batch_plan, has_unit_ratio, uses_utilities
from maxent_grpo.config.root import RootConfig
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    EntropyMode,
    GroupLoss,
    NeutralGroups,
    RatioLevel,
    Reduction,
    RowWeighting,
    Shaping,
    Surrogate,
    TokenSelection,
)


def _pass_k(config: RootConfig) -> Iterator[str]:
    scoring, size = config.scoring, config.generation.num_generations
    if scoring.advantage is AdvantageKind.pass_at_k and scoring.pass_k >= size:
        smaller = f"use scoring.pass_k={size - 1} or less, or larger groups" if size > 1 else "use larger groups"
        yield (
            f"scoring.pass_k={scoring.pass_k} is not below generation.num_generations={size}: the sets of a group that large "
            f"all have a right completion or all have none, so nothing would be learnt; {smaller}"
        )


def _shaping(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    shaping, limit = scoring.shaping, config.generation.max_completion_len
    if not uses_utilities(scoring):
        what = (
            "scoring.group_loss=conditional"
            if scoring.advantage is AdvantageKind.none
            else "scoring.advantage=pass_at_k"
        )
        for path, value, off in (
            ("scoring.shaping.kind", shaping.kind, Shaping.none),
            ("scoring.shaping.overlong_buffer", shaping.overlong_buffer, 0),
            ("scoring.policy_entropy_bonus_coef", scoring.policy_entropy_bonus_coef, 0.0),
        ):
            if value != off:
                yield (
                    f"{path}={value} changes how much a completion is worth, and {what} looks only at which are right: use "
                    f"{path}={off}, or scoring.advantage=group_mean"
                )
    if shaping.overlong_buffer > limit:
        yield (
            f"scoring.shaping.overlong_buffer={shaping.overlong_buffer} exceeds generation.max_completion_len={limit}: no "
            f"completion could be free of the penalty; use scoring.shaping.overlong_buffer={limit} or less"
        )


def _row_weights(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    weights = scoring.row_weights
    if weights.mode_adaptive and weights.tau is None:
        yield (
            "scoring.row_weights.mode_adaptive=true with scoring.row_weights.tau=null: an infinite temperature stays infinite "
            "when it is divided; set scoring.row_weights.tau or scoring.row_weights.mode_adaptive=false"
        )
    if scoring.advantage is AdvantageKind.soft and weights.kind is not RowWeighting.uniform:
        yield (
            f"scoring.row_weights.kind={weights.kind} with scoring.advantage=soft: row weights belong to advantages that follow "
            f"from utilities alone, and those of soft change with tau and beta at every step; use "
            f"scoring.row_weights.kind=uniform"
        )


def _without_advantage(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    if scoring.advantage is not AdvantageKind.none:
        return
    for path, value, off in (
        ("scoring.row_weights.kind", scoring.row_weights.kind, RowWeighting.uniform),
        ("scoring.surrogate.kind", scoring.surrogate.kind, Surrogate.clip),
        ("scoring.token_selection.kind", scoring.token_selection.kind, TokenSelection.all),
    ):
        if value is not off:
            yield (
                f"{path}={value} is a rule of the advantage term, which scoring.advantage=none leaves out: use {path}={off} "
                f"or scoring.advantage=group_mean"
            )


def _surrogate(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    if scoring.surrogate.kind is Surrogate.weighted_likelihood and scoring.ratio_level is RatioLevel.sequence:
        yield (
            "scoring.surrogate.kind=weighted_likelihood with scoring.ratio_level=sequence: the ratio weighs the "
            "log-probability of a single token; use scoring.ratio_level=token or scoring.surrogate.kind=clip"
        )


def _token_selection(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    selection = scoring.token_selection
    if selection.covariance_low >= selection.covariance_high:
        yield (
            f"scoring.token_selection.covariance_low={selection.covariance_low} is not below "
            f"scoring.token_selection.covariance_high={selection.covariance_high}: no token lies between; use a smaller "
            f"scoring.token_selection.covariance_low"
        )
    if selection.kind is TokenSelection.clip_cov:
        yield from _clip_cov(config)
    if selection.kind is TokenSelection.high_entropy:
        measured = "scoring.token_selection.kind=high_entropy chooses tokens by the entropy of the policy, which"
        if not scoring.policy_entropy:
            yield f"{measured} scoring.policy_entropy=false does not measure: set scoring.policy_entropy=true"
        elif scoring.policy_entropy_mode is EntropyMode.sample:
            yield (
                f"{measured} scoring.policy_entropy_mode=sample only estimates by the drawn token: use "
                f"scoring.policy_entropy_mode=exact"
            )
    if selection.count_kept_only and scoring.reduction is not Reduction.token:
        yield (
            f"scoring.token_selection.count_kept_only=true with scoring.reduction={scoring.reduction}: only "
            f"scoring.reduction=token divides by a number of tokens of the whole step; use scoring.reduction=token or "
            f"scoring.token_selection.count_kept_only=false"
        )


def _clip_cov(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    if scoring.ratio_level is RatioLevel.sequence and scoring.advantage is not AdvantageKind.none:
        yield (
            "scoring.token_selection.kind=clip_cov with scoring.ratio_level=sequence chooses among tokens that the clip leaves, and that "
            "clips whole completions: use scoring.ratio_level=token or another scoring.token_selection.kind"
        )
    for path, value, clips in (
        ("scoring.surrogate.kind", str(scoring.surrogate.kind), str(Surrogate.clip)),
        ("scoring.clipping.use_clip_objective", str(scoring.clipping.use_clip_objective).lower(), "true"),
    ):
        if value != clips and scoring.advantage is not AdvantageKind.none:
            yield (
                f"scoring.token_selection.kind=clip_cov chooses among the tokens that the clip leaves, and {path}={value} "
                f"does not clip: use {path}={clips} or another scoring.token_selection.kind"
            )


def _listwise_clip(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    if (
        scoring.advantage is AdvantageKind.none
        and scoring.clipping.use_clip_objective
        and scoring.weighting.listwise_coef > 0
        and scoring.group_loss is not GroupLoss.cross_entropy
    ):
        yield (
            f"scoring.clipping.use_clip_objective=true with scoring.advantage=none adds the clipped term of "
            f"scoring.group_loss=cross_entropy, and the group loss is {scoring.group_loss}: use "
            f"scoring.clipping.use_clip_objective=false or scoring.group_loss=cross_entropy"
        )


CREDIT_RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (
    _pass_k,
    _shaping,
    _row_weights,
    _without_advantage,
    _surrogate,
    _token_selection,
    _listwise_clip,
)
"""Every rule of this file, in the order in which their sentences are printed."""


def credit_warnings(config: RootConfig) -> list[str]:
    """What is allowed of a method but probably not meant."""
    scoring = config.scoring
    found: list[str] = []
    if scoring.advantage is not AdvantageKind.none:
        found += _policy_term_warnings(config)
    listwise = scoring.weighting.listwise_coef > 0 and scoring.weighting.neutral_groups is not NeutralGroups.skip
    if scoring.dynamic_sampling.enabled and (listwise or scoring.advantage is AdvantageKind.soft):
        what = (
            f"scoring.weighting.neutral_groups={scoring.weighting.neutral_groups}"
            if listwise
            else "scoring.advantage=soft"
        )
        found.append(
            f"scoring.dynamic_sampling.enabled=true replaces groups with equal utilities, some of which {what} would train"
        )
    return found


def _policy_term_warnings(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    if scoring.ratio_level is RatioLevel.sequence and scoring.reduction is not Reduction.sequence:
        yield (
            f"scoring.ratio_level=sequence with scoring.reduction={scoring.reduction} counts a completion's ratio once for "
            f"each of its tokens; scoring.reduction=sequence, as in GSPO, counts it once"
        )
    if scoring.token_selection.kind is TokenSelection.kl_cov and has_unit_ratio(config):
        yield (
            "scoring.token_selection.kind=kl_cov holds tokens by |log pi - log pi_old|, which has no gradient where the two "
            "are equal, and with one update per rollout they are: set optimization.num_iterations or optimization.minibatches "
            "to 2 or more"
        )
    if scoring.reduction is Reduction.micro_batch and batch_plan(config, 1).slices_per_step == 1:
        yield (
            "scoring.reduction=micro_batch averages over slices, and a step is a single one: that is scoring.reduction=token; "
            "cut it with scoring.batching.score_slice"
        )

"""Contradictions among the settings of the method: weights, ratio and clip, reference, entropy, sampling corrections."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from maxent_grpo.config.resolve import chosen_options, uses_temperature
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.scoring import MaxEntListwiseScoringConfig, MaxEntScoringConfig, ScoringConfig
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    BehaviorSource,
    EntropyMode,
    MismatchMode,
    ReferenceSource,
    ScoreMode,
)


def _weight_exponent(config: RootConfig) -> Iterator[str]:
    weighting = config.scoring.weighting
    maxent = isinstance(config.scoring, (MaxEntScoringConfig, MaxEntListwiseScoringConfig))
    if weighting.denom == 0 and (maxent or uses_temperature(config.scoring)):
        who = f"scoring={chosen_options(config)['scoring']}"
        if not uses_temperature(type(config.scoring)()):  # its own defaults do not explain why
            soft = config.scoring.advantage is AdvantageKind.soft
            who += " with " + (
                "scoring.advantage=soft" if soft else f"scoring.weighting.listwise_coef={weighting.listwise_coef}"
            )
        yield (
            f"{who} needs scoring.weighting.tau + scoring.weighting.beta > 0 (got {weighting.tau} + {weighting.beta}): the "
            f"weight exponent 1/(tau+beta) is undefined; use scoring=dr_grpo for the unweighted objective"
        )


def _weight_floor(config: RootConfig) -> Iterator[str]:
    epsilon, size = config.scoring.weighting.q_epsilon, config.generation.num_generations
    if epsilon * size >= 1:
        yield (
            f"scoring.weighting.q_epsilon={epsilon} with generation.num_generations={size}: the floors of a group add up to "
            f"{epsilon * size:g}, which leaves nothing of q; use scoring.weighting.q_epsilon below {1 / size:g}"
        )


def _nothing_to_optimise(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    if scoring.advantage is AdvantageKind.none and scoring.weighting.listwise_coef == 0:
        yield (
            "scoring.advantage=none with scoring.weighting.listwise_coef=0.0 leaves no term that follows the reward: set "
            "scoring.weighting.listwise_coef above 0 or scoring.advantage=group_mean"
        )


FUNCTION_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""package.module:function."""


def _advantage_function(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    target, is_called = scoring.advantage_function, scoring.advantage is AdvantageKind.function
    if is_called and target is None:
        yield (
            "scoring.advantage=function calls the rule that scoring.advantage_function names, which is null: write "
            "scoring.advantage_function=package.module:function, or choose another scoring.advantage"
        )
    if target is not None and not FUNCTION_PATH.fullmatch(target):
        yield f"scoring.advantage_function={target}: write it as package.module:function"
    elif target is not None and not is_called:
        yield (
            f"scoring.advantage_function={target} is called with scoring.advantage=function only, and scoring.advantage="
            f"{scoring.advantage}: set scoring.advantage=function or scoring.advantage_function=null"
        )


def _mean_scores(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    weighting = scoring.weighting
    if (
        weighting.score_mode is ScoreMode.mean
        and weighting.listwise_coef > 0
        and scoring.advantage is not AdvantageKind.none
    ):
        yield (
            f"scoring.weighting.score_mode=mean with scoring.weighting.listwise_coef={weighting.listwise_coef} and "
            f"scoring.advantage={scoring.advantage}: a mean over tokens changes the balance of the two terms with each "
            f"completion's length; use scoring.weighting.score_mode=const"
        )


def _clip(config: RootConfig) -> Iterator[str]:
    clip = config.scoring.clipping
    low, high = clip.clip_range, clip.clip_range_high
    if high is not None and high < low:
        yield (
            f"scoring.clipping.clip_range_high={high} is below scoring.clipping.clip_range={low}: the upper distance must "
            f"not be the smaller one; use scoring.clipping.clip_range_high={low} or more, or null for the same"
        )
    upper = 1 + (low if high is None else high)
    if clip.clip_delta is not None and not clip.clip_delta > upper:
        yield (
            f"scoring.clipping.clip_delta={clip.clip_delta} caps ratios inside the clip range, which ends at {upper:g}; use "
            f"scoring.clipping.clip_delta above {upper:g}, or null"
        )
    if not clip.use_clip_objective and clip.clip_objective_coef != 1:
        yield (
            f"scoring.clipping.clip_objective_coef={clip.clip_objective_coef} is the factor of the clipped term, which "
            f"scoring.clipping.use_clip_objective=false leaves out: set scoring.clipping.use_clip_objective=true or "
            f"scoring.clipping.clip_objective_coef=1"
        )


def _reference(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    if scoring.reference_logprobs_source is not ReferenceSource.none:
        return
    if scoring.kl_beta > 0:
        yield (
            f"scoring.kl_beta={scoring.kl_beta} needs reference log-probabilities, which "
            f"scoring.reference_logprobs_source=none leaves out: use scoring.reference_logprobs_source=model or "
            f"scoring.kl_beta=0"
        )
    if scoring.weighting.beta > 0 and uses_temperature(scoring):
        yield (
            f"scoring.weighting.beta={scoring.weighting.beta} needs reference log-probabilities, which "
            f"scoring.reference_logprobs_source=none leaves out: use scoring.reference_logprobs_source=model or "
            f"scoring.weighting.beta=0"
        )


def _entropy(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    for path, coefficient in (
        ("scoring.entropy_coef", scoring.entropy_coef),
        ("scoring.policy_entropy_bonus_coef", scoring.policy_entropy_bonus_coef),
    ):
        if coefficient > 0 and not scoring.policy_entropy:
            yield (
                f"{path}={coefficient} rewards an entropy that scoring.policy_entropy=false does not measure: set "
                f"scoring.policy_entropy=true or {path}=0"
            )
    if scoring.entropy_coef > 0 and scoring.policy_entropy_mode is EntropyMode.sample:
        yield (
            f"scoring.entropy_coef={scoring.entropy_coef} with scoring.policy_entropy_mode=sample: the drawn token's "
            f"log-probability has no entropy gradient; use scoring.policy_entropy_mode=exact"
        )


def _mismatch(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    mismatch = scoring.mismatch
    if mismatch.floor > mismatch.cap:
        yield (
            f"scoring.mismatch.floor={mismatch.floor} exceeds scoring.mismatch.cap={mismatch.cap}: no weight lies between; "
            f"use scoring.mismatch.floor={mismatch.cap} or less"
        )
    if mismatch.mode is not MismatchMode.bypass and scoring.behavior_logprobs_source is BehaviorSource.model:
        yield (
            f"scoring.mismatch.mode={mismatch.mode} corrects the sampler's log-probabilities, which "
            f"scoring.behavior_logprobs_source=model does not use: set scoring.behavior_logprobs_source=sampler or "
            f"scoring.mismatch.mode=bypass"
        )


def _penalties(config: RootConfig) -> Iterator[str]:
    scoring = config.scoring
    sampled = scoring.behavior_logprobs_source is not BehaviorSource.model
    if not has_ratio(scoring) or (sampled and scoring.mismatch.mode is not MismatchMode.bypass):
        return
    for path, value in _active_penalties(config):
        yield (
            f"{path}={value} samples from another distribution than scoring sees, so the importance "
            f"ratio would be wrong: set scoring.behavior_logprobs_source=sampler with "
            f"scoring.mismatch.mode=token_truncate, or {path}=null"
        )


def _active_penalties(config: RootConfig) -> list[tuple[str, float]]:
    penalty = config.generation.penalty
    neutral = {
        "gen_presence_penalty": (penalty.gen_presence_penalty, 0),
        "gen_frequency_penalty": (penalty.gen_frequency_penalty, 0),
        "gen_repetition_penalty": (penalty.gen_repetition_penalty, 1),
    }
    return [
        (f"generation.penalty.{name}", value)
        for name, (value, off) in neutral.items()
        if value is not None and value != off
    ]


def _truncated_sampling(config: RootConfig) -> Iterator[str]:
    """The mean ratio is 1 only where scoring replays the support of sampling, token by token."""
    generation, schedule = config.generation, config.optimization
    steps = schedule.minibatches * schedule.num_iterations
    if not has_ratio(config.scoring):
        return
    for path, value, off in (
        ("generation.top_p", generation.top_p, 1),
        ("generation.penalty.gen_top_k", generation.penalty.gen_top_k, None),
        ("generation.penalty.gen_min_p", generation.penalty.gen_min_p, None),
    ):
        if value is None or value == off or (off is None and value == 0):
            continue
        written = "null" if off is None else off
        if steps > 1:
            yield (
                f"{path}={value} with optimization.minibatches={schedule.minibatches} and optimization.num_iterations="
                f"{schedule.num_iterations}: once an update has moved the weights, truncation keeps other tokens than it did in "
                f"sampling, so the importance ratio would be biased; use {path}={written}, or 1 for both"
            )
        elif generation.async_steps:
            yield (
                f"{path}={value} with generation.async_steps={generation.async_steps}: an update moves the weights before a rollout "
                f"trains, and truncation keeps other tokens than it did in sampling, so the importance ratio would be biased; use "
                f"{path}={written}, or generation.async_steps=0"
            )
        for penalty, amount in _active_penalties(config):
            yield (
                f"{path}={value} with {penalty}={amount}: sampling truncates the penalised distribution and scoring the plain "
                f"one, so the importance ratio would be biased; use {path}={written} or {penalty}=null"
            )


def _sampled_ahead(config: RootConfig) -> Iterator[str]:
    ahead, scoring = config.generation.async_steps, config.scoring
    if ahead and has_ratio(scoring) and scoring.behavior_logprobs_source is BehaviorSource.model:
        yield (
            f"generation.async_steps={ahead} trains on completions of weights that have been updated since, whose importance ratio "
            f"scoring.behavior_logprobs_source=model would take for 1: set scoring.behavior_logprobs_source=sampler with "
            f"scoring.mismatch.mode=token_truncate, or generation.async_steps=0"
        )


def has_ratio(scoring: ScoringConfig) -> bool:
    """Whether the loss has a term with an importance ratio."""
    return scoring.advantage is not AdvantageKind.none or scoring.clipping.use_clip_objective


METHOD_RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (
    _weight_exponent,
    _weight_floor,
    _nothing_to_optimise,
    _advantage_function,
    _mean_scores,
    _clip,
    _reference,
    _entropy,
    _mismatch,
    _penalties,
    _truncated_sampling,
    _sampled_ahead,
)
"""Every rule of this file, in the order in which their sentences are printed."""

"""Contradictions among the reward terms, and between them and the method."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator

from maxent_grpo.config.contradictions_method import FUNCTION_PATH
from maxent_grpo.config.resolve import uses_utilities
from maxent_grpo.config.root import RootConfig
from maxent_grpo.rewards.registry import BUILT_IN, overlong_sizes
from maxent_grpo.training.types.choices import AdvantageKind, RewardNormalization, Shaping

FILE_PATH = re.compile(r".+\.py:[A-Za-z_]\w*")
"""folder/file.py:function."""
RESCALING = (AdvantageKind.group_std, AdvantageKind.batch_std, AdvantageKind.whitened)
"""Advantages that divide by a deviation themselves."""


def _reward(config: RootConfig) -> Iterator[str]:
    reward = config.reward
    known = [*BUILT_IN, *reward.functions]
    for name in reward.terms:
        if name not in known:
            guess = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {guess[0]}?" if guess else ""
            yield f"reward.terms.{name}: no such term; there are {', '.join(known)}{hint}"
    for name, weight in reward.terms.items():
        if not math.isfinite(weight):
            yield f"reward.terms.{name}={weight}: a weight must be finite"
    if not any(reward.terms.values()):
        yield "reward.terms has no term with a weight other than 0, so every utility would be 0: set reward.terms.task=1"
    listed = f"it has {', '.join(reward.terms) or 'none'}"
    for name, action in reward.on_error.items():
        if name not in reward.terms:
            yield f"reward.on_error.{name}={action}: reward.terms has no {name}; {listed}"
    for name, seconds in reward.time_limits.items():
        if name not in reward.terms:
            yield f"reward.time_limits.{name}={seconds}: reward.terms has no {name}; {listed}"
        if not 0 < seconds < math.inf:
            yield f"reward.time_limits.{name}={seconds}: must be above 0 and finite"


def _functions(config: RootConfig) -> Iterator[str]:
    reward = config.reward
    for name, target in reward.functions.items():
        if name in BUILT_IN:
            yield f"reward.functions.{name}: {name} is a built-in term; give your function another name"
        if not (FUNCTION_PATH.fullmatch(target) or FILE_PATH.fullmatch(target)):
            yield f"reward.functions.{name}={target}: write it as package.module:function or folder/file.py:function"
        if name not in reward.terms:
            yield f"reward.functions.{name} has no weight, so it would never be called: add reward.terms.{name}=1"
    for name, style in reward.styles.items():
        if name not in reward.functions:
            yield (
                f"reward.styles.{name}={style}: says how a function of yours is called, and reward.functions has no {name}; "
                f"it has {', '.join(reward.functions) or 'none'}"
            )


def _built_in_terms(config: RootConfig) -> Iterator[str]:
    """Settings of the terms that are asked for."""
    reward = config.reward
    if "regex" in reward.terms:
        yield from _pattern(reward.regex.pattern)
    if "overlong" not in reward.terms:
        return
    sampled = config.generation.max_completion_len
    limit, buffer = overlong_sizes(reward.overlong, sampled)
    if min(limit, buffer) < 1:
        return
    if buffer > limit:
        yield (
            f"reward.overlong.buffer={buffer} exceeds its limit of {limit} tokens: no completion could be free of the "
            f"punishment; use reward.overlong.buffer={limit} or less"
        )
    if limit - buffer >= sampled:
        yield (
            f"reward.overlong.limit={limit} with a buffer of {buffer} punishes completions of more than {limit - buffer} "
            f"tokens, and generation.max_completion_len={sampled} samples none: use reward.overlong.limit={sampled} or null"
        )
    shaping = config.scoring.shaping.overlong_buffer
    if shaping:
        yield (
            f"reward.terms.overlong={reward.terms['overlong']} together with scoring.shaping.overlong_buffer={shaping} punishes "
            "one length twice: use scoring.shaping.overlong_buffer=0, or ~reward.terms.overlong"
        )


def _pattern(pattern: str | None) -> Iterator[str]:
    if not pattern:
        yield "reward.terms.regex needs a pattern, and reward.regex.pattern has none: set it, or ~reward.terms.regex"
        return
    import regex

    try:
        regex.compile(pattern)
    except regex.error as error:
        yield f"reward.regex.pattern={pattern}: is no pattern ({error}); mend it"


def _normalization(config: RootConfig) -> Iterator[str]:
    normalize, scoring = config.reward.normalize, config.scoring
    if normalize is RewardNormalization.none:
        return
    setting, off = f"reward.normalize={normalize}", "use reward.normalize=none"
    if not uses_utilities(scoring):
        yield (
            f"{setting} changes how much a completion is worth, and this method looks only at which are right "
            f"(scoring.advantage={scoring.advantage}, scoring.group_loss={scoring.group_loss}): {off}, or "
            "scoring.advantage=group_mean"
        )
    if scoring.advantage in RESCALING:
        yield (
            f"{setting} with scoring.advantage={scoring.advantage} would divide by a deviation twice: use "
            "scoring.advantage=group_mean, or reward.normalize=none"
        )
    if normalize is not RewardNormalization.term:
        return
    for path, value, plain, why in (
        (
            "scoring.shaping.kind",
            scoring.shaping.kind,
            Shaping.none,
            "reshapes the sum of the terms by its sign and size",
        ),
        ("scoring.shaping.overlong_buffer", scoring.shaping.overlong_buffer, 0, "is added to that sum"),
        ("scoring.policy_entropy_bonus_coef", scoring.policy_entropy_bonus_coef, 0.0, "is added to that sum"),
    ):
        if value != plain:
            instead = ", and reward.terms.overlong=1 for the punishment" if path.endswith("overlong_buffer") else ""
            yield (
                f"{path}={value} {why}, which reward.normalize=term never takes: use {path}={plain}{instead}, or "
                "reward.normalize=sum"
            )


REWARD_RULES: tuple[Callable[[RootConfig], Iterator[str]], ...] = (
    _reward,
    _functions,
    _built_in_terms,
    _normalization,
)
"""Every rule of this file, in the order in which their sentences are printed."""


def reward_warnings(config: RootConfig) -> list[str]:
    """What is allowed of the rewards but probably not meant."""
    found: list[str] = []
    threshold, terms = config.scoring.weighting.right_threshold, config.reward.terms
    most = sum(weight for weight in terms.values() if weight > 0)
    if terms and not config.reward.functions and most < threshold:
        # built-in terms give at most 1 each
        listed = ", ".join(f"{name}: {weight:g}" for name, weight in terms.items())
        found.append(
            f"reward.terms={{{listed}}} adds up to at most {most:g}, below scoring.weighting.right_threshold={threshold:g}: no "
            f"completion will count as right; set scoring.weighting.right_threshold below {most:g}"
        )
    if config.reward.normalize is RewardNormalization.term and config.scoring.dynamic_sampling.enabled:
        found.append(
            "scoring.dynamic_sampling.enabled=true draws groups again whose weighted sums are equal, also where "
            "reward.normalize=term would tell their completions apart by single terms"
        )
    return found

"""Credit: the names of the rules that turn a group's utilities into advantages, and the pure functions behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from maxent_grpo.errors import RewardError
from maxent_grpo.objective.advantages import (
    batch_standardised_advantages,
    centred_advantages,
    leave_one_out_advantages,
    pass_at_k_advantages,
    standardised_advantages,
    whitened_advantages,
)
from maxent_grpo.objective.aggregation import (
    answer_entropy,
    entropy_discount,
    mode_adaptive_tau,
    prompt_scaled_row_weights,
    risk_utilities,
    tempered_row_weights,
)
from maxent_grpo.objective.shaping import overlong_penalty, uniqueness_utilities, unlikeliness_utilities
from maxent_grpo.rewards.functions import imported_function
from maxent_grpo.rewards.raised import raised
from maxent_grpo.training.types.choices import AdvantageKind, RowWeighting, Shaping
from maxent_grpo.training.types.credit import RowWeightSettings, ShapingSettings
from maxent_grpo.training.types.runtime import ScoringSettings


@dataclass(frozen=True)
class GroupFacts:
    """What a credit rule may know of a rollout's completions besides their utilities, each [P, G]."""

    valid: Tensor
    """Rows with a reward that are not excluded."""
    lengths: Tensor
    """Trained tokens."""
    total_lengths: Tensor
    """Completion tokens."""
    keys: Tensor
    """Integer name of the canonical answer within its group; see ``objective.shaping``."""
    right: Tensor
    """Rows whose reward reaches `right_threshold`."""
    mean_logp: Tensor | None
    """Mean log-probability of the trained tokens under the sampler [nats]; None where nobody asked for it."""


CreditRule = Callable[[Tensor, GroupFacts], Tensor]
"""(values [P, G], facts) -> values [P, G]."""

ADVANTAGES: dict[AdvantageKind, CreditRule | None] = {
    AdvantageKind.none: None,
    AdvantageKind.group_mean: lambda utilities, facts: centred_advantages(utilities, facts.valid),
    AdvantageKind.group_std: lambda utilities, facts: standardised_advantages(utilities, facts.valid),
    AdvantageKind.batch_std: lambda utilities, facts: batch_standardised_advantages(utilities, facts.valid),
    AdvantageKind.leave_one_out: lambda utilities, facts: leave_one_out_advantages(utilities, facts.valid),
    AdvantageKind.whitened: lambda utilities, facts: whitened_advantages(utilities, facts.valid, facts.lengths),
    AdvantageKind.soft: None,
}
"""Rules without settings of their own; None has no advantages that follow from utilities alone."""


def credit_rules(
    scoring: ScoringSettings, *, max_completion_len: int
) -> tuple[CreditRule | None, CreditRule | None, CreditRule | None]:
    """Shaping of the utilities, advantages, and row weights as configured; None where a rule is off."""
    return (
        _shaping(scoring.shaping, max_completion_len),
        _advantages(scoring),
        _row_weights(scoring.row_weights, max_completion_len),
    )


def _advantages(scoring: ScoringSettings) -> CreditRule | None:
    if scoring.advantage is AdvantageKind.function:
        assert scoring.advantage_function is not None, "the configuration refuses a rule without a function"
        return own_advantages(scoring.advantage_function)
    if scoring.advantage is AdvantageKind.pass_at_k:
        return lambda _, facts: pass_at_k_advantages(facts.right, facts.valid, k=scoring.pass_k)
    return ADVANTAGES[scoring.advantage]


def own_advantages(path: str) -> CreditRule:
    """The rule ``package.module:function``, whose result is checked; rows that are not valid have advantage 0.

    Raises:
        ConfigError: the module has no such function.
        RewardError: raised by the rule when the function raises or returns another shape, or a valid row's advantage is not finite.
    """
    setting = "scoring.advantage_function"
    function = imported_function(setting, path)

    def rule(utilities: Tensor, facts: GroupFacts) -> Tensor:
        try:
            result = function(utilities, facts)
        except Exception as error:  # the user's code may raise anything
            raise RewardError(f"{setting}={path} raised {raised(error, function)}") from error
        if not isinstance(result, Tensor) or result.shape != utilities.shape:
            got = f"a tensor of shape {list(result.shape)}" if isinstance(result, Tensor) else repr(result)
            raise RewardError(
                f"{setting}={path} returned {got} for {utilities.shape[0]} groups of {utilities.shape[1]} completions: return "
                f"a tensor of shape {list(utilities.shape)}"
            )
        advantages = torch.where(facts.valid, result.detach().to(utilities), torch.zeros_like(utilities))
        wrong = (~advantages.isfinite()).nonzero().tolist()
        if wrong:
            group, row = wrong[0]
            raise RewardError(
                f"{setting}={path} gave completion {row} of group {group}, with utility {float(utilities[group, row]):g}, "
                f"the advantage {float(advantages[group, row])}: return finite numbers, 0 where a group has no signal"
            )
        return advantages

    return rule


def _shaping(settings: ShapingSettings, max_completion_len: int) -> CreditRule | None:
    rules: list[CreditRule] = []
    if settings.kind is Shaping.uniqueness:
        power = settings.uniqueness_power
        rules.append(lambda values, facts: uniqueness_utilities(values, facts.valid, facts.keys, power=power))
    if settings.kind is Shaping.unlikeliness:
        discount = settings.unlikeliness_discount
        rules.append(
            lambda values, facts: unlikeliness_utilities(values, facts.valid, _known(facts), discount=discount)
        )
    if settings.overlong_buffer > 0:
        penalty = partial(overlong_penalty, limit=max_completion_len, buffer=settings.overlong_buffer)
        rules.append(lambda values, facts: values + settings.overlong_weight * penalty(facts.total_lengths))
    return _chained(rules) if rules else None


def _chained(rules: list[CreditRule]) -> CreditRule:
    def rule(values: Tensor, facts: GroupFacts) -> Tensor:
        for each in rules:
            values = each(values, facts)
        return values

    return rule


def _row_weights(settings: RowWeightSettings, max_completion_len: int) -> CreditRule | None:
    if settings.kind is RowWeighting.uniform:
        return None
    if settings.kind is RowWeighting.answer_entropy:
        return lambda advantages, facts: entropy_discounts(advantages, facts, settings.entropy_alpha)
    if settings.tau is None and settings.kind is RowWeighting.tempered:
        return None  # an infinite temperature is Dr.GRPO itself, to the last bit
    return partial(_tempered, settings=settings, max_completion_len=max_completion_len)


def entropy_discounts(advantages: Tensor, facts: GroupFacts, alpha: float) -> Tensor:
    """Each prompt's factor 1 / (1 + alpha H / log G), repeated over its group [P, G]."""
    entropy = answer_entropy(facts.keys, facts.valid, _known(facts))
    factor = entropy_discount(entropy, alpha=alpha, group_size=advantages.shape[-1])
    return factor.unsqueeze(-1).expand_as(advantages)


def _tempered(advantages: Tensor, facts: GroupFacts, *, settings: RowWeightSettings, max_completion_len: int) -> Tensor:
    tau = torch.full(advantages.shape[:1], torch.inf if settings.tau is None else settings.tau, dtype=torch.float64)
    if settings.mode_adaptive:
        assert settings.tau is not None, "the configuration refuses an infinite temperature that adapts"
        tau = mode_adaptive_tau(facts.keys, facts.right & facts.valid, tau=settings.tau)
    rows = risk_utilities(advantages, facts.lengths, max_length=max_completion_len)
    weights = tempered_row_weights(rows, facts.valid, tau)
    return prompt_scaled_row_weights(weights, advantages) if settings.kind is RowWeighting.prompt_scaled else weights


def _known(facts: GroupFacts) -> Tensor:
    assert facts.mean_logp is not None, "the method asks for the sampler's log-probabilities"
    return facts.mean_logp

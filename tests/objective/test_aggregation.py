"""Row weights within a group and between prompts: worked examples, limits, and what tempering does in expectation."""

import itertools
import math

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals, both_precisions, everything_valid

from maxent_grpo.objective.advantages import centred_advantages
from maxent_grpo.objective.aggregation import (
    answer_entropy,
    entropy_discount,
    mode_adaptive_tau,
    prompt_scaled_row_weights,
    risk_utilities,
    tempered_row_weights,
)
from maxent_grpo.objective.shaping import NO_KEY

ADVANTAGES = [[0.5, -0.5, -0.5, 0.5]]
LENGTHS = torch.tensor([[32, 16, 64, 24]])
ALL = torch.ones(1, 4, dtype=torch.bool)


def weights(tau: float, valid: torch.Tensor = ALL, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    utilities = risk_utilities(torch.tensor(ADVANTAGES, dtype=dtype), LENGTHS, max_length=64)
    return tempered_row_weights(utilities, valid, torch.tensor([tau], dtype=dtype))[0]


@both_precisions
def test_row_utilities_and_weights_match_the_worked_examples(dtype: torch.dtype) -> None:
    utilities = risk_utilities(torch.tensor(ADVANTAGES, dtype=dtype), LENGTHS, max_length=64)
    assert_equals(utilities[0], golden("xdr.U"))
    for tau in (0.0, 0.05, 0.5, math.inf):
        assert_equals(weights(tau, dtype=dtype), golden(f"xdr.rowweights.tau{tau}"))
    masked = torch.tensor([[True, True, True, False]])
    assert_equals(weights(0.05, masked, dtype), golden("xdr.masked_row3.tau0.05"))


def test_effective_size_and_wrong_mass_match_the_worked_example() -> None:
    share = weights(0.05) / 4
    size, wrong = golden("xdr.eff_rollouts_incorrect_mass.tau0.05")
    assert_equals(torch.special.entr(share).sum().exp(), size)
    assert_equals(share[[1, 2]].sum(), wrong)


def test_the_tempered_value_is_the_entropic_risk_and_expands_in_its_variance() -> None:
    utilities = risk_utilities(torch.tensor(ADVANTAGES, dtype=torch.float64), LENGTHS, max_length=64)[0]
    assert_equals(0.05 * torch.logsumexp(utilities / 0.05, 0), golden("xdr.LSE_value.tau0.05"))
    exact, expansion = golden("xdr.variance_expansion.tau5")
    assert_equals(5 * torch.logsumexp(utilities / 5, 0), exact)
    assert_equals(5 * math.log(4) + utilities.mean() + utilities.var(correction=0) / 10, expansion)


def test_exact_ties_share_the_weight_at_temperature_zero() -> None:
    utilities = torch.tensor([[0.3, 0.7, 0.7, 0.9]], dtype=torch.float64)
    valid = torch.tensor([[True, True, True, False]])
    assert tempered_row_weights(utilities, valid, torch.zeros(1, dtype=torch.float64)).tolist() == [[0, 1.5, 1.5, 0]]


def test_a_group_without_a_valid_completion_has_no_weight() -> None:
    none = torch.zeros(1, 4, dtype=torch.bool)
    for tau in (0.0, 0.05, math.inf):
        assert not weights(tau, none).any()


def test_the_temperature_falls_with_the_number_of_right_answers_found() -> None:
    keys = torch.tensor([[0, 0, 0, 1, 2, 3], [0, 0, 1, 1, 2, 3], [0, 1, 2, 3, 4, 5]])
    right = torch.tensor(
        [
            [True, True, True, False, False, False],
            [True, True, True, True, False, False],
            [True, True, True, True, True, False],
        ]
    )
    assert_equals(mode_adaptive_tau(keys, right, tau=0.05), golden("xdr.mode_adaptive_tau0.05_kappa0,1,2,5")[1:])
    assert mode_adaptive_tau(keys[:1], torch.zeros_like(right[:1]), tau=0.05).tolist() == [0.05]
    unkeyed = torch.tensor([[NO_KEY, NO_KEY]])
    assert_equals(mode_adaptive_tau(unkeyed, everything_valid(unkeyed), tau=1.0), [1 / math.log(3)])


def expected_gradients(tau: float, *, scaled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact expected logit gradients of Dr.GRPO and of the tempered rows, over all groups of four of five outcomes."""
    pi = torch.softmax(torch.tensor([1.2, 0.3, -0.5, 0.8, -0.2], dtype=torch.float64), 0)
    drawn = torch.tensor(list(itertools.product(range(5), repeat=4)))
    probability = pi[drawn].prod(dim=-1, keepdim=True)
    valid = everything_valid(drawn)
    advantages = centred_advantages((drawn < 2).double(), valid)
    rows = tempered_row_weights(advantages, valid, torch.full((len(drawn),), tau, dtype=torch.float64))
    rows = prompt_scaled_row_weights(rows, advantages) if scaled else rows
    scores = torch.nn.functional.one_hot(drawn, 5).double() - pi

    def gradient(per_row: torch.Tensor) -> torch.Tensor:
        return ((probability * per_row / 4).unsqueeze(-1) * scores).sum(dim=(0, 1))

    return gradient(advantages), gradient(rows * advantages)


def test_on_binary_rewards_tempering_rescales_the_expected_gradient_of_dr_grpo() -> None:
    plain, tempered = expected_gradients(0.25, scaled=False)
    assert_equals(plain, golden("xdr.tabular_expected_grad_dr"))
    assert_equals(tempered, golden("xdr.tabular_expected_grad_xdr_tau0.25"))
    assert_equals(tempered / plain, golden("xdr.tabular_ratio"), tolerance=1e-10)


def test_scaling_whole_prompts_keeps_that_factor_and_the_balance_within_the_group() -> None:
    plain, scaled = expected_gradients(0.25, scaled=True)
    ratio = scaled / plain
    assert float((ratio - ratio[0]).abs().max()) < 1e-12
    advantages = torch.tensor([[0.75, -0.25, -0.25, -0.25], [0.0, 0.0, 0.0, 0.0]])
    rows = prompt_scaled_row_weights(torch.tensor([[4.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]), advantages)
    assert_equals(rows[0], [4.0 * 0.75**2 / (0.75**2 + 3 * 0.25**2)] * 4)
    assert not rows[1].any()


LIKELIHOODS = [[-0.5, -0.7, -1.0, -0.6]]
CASES = {
    "seed.A_A_B_None": ([0, 0, 1, NO_KEY], LIKELIHOODS, 1.0),
    "seed.single": ([0, 0, 0, 0], LIKELIHOODS, 1.0),
    "seed.all_distinct_equal": ([0, 1, 2, 3], [[-1.0] * 4], 1.0),
    "seed.alpha0.0417": ([0, 1, 2, 3], [[-1.0] * 4], 0.0417),
}


@pytest.mark.parametrize("name", CASES)
@both_precisions
def test_answer_entropy_and_its_discount_match_the_worked_examples(name: str, dtype: torch.dtype) -> None:
    keys, likelihoods, alpha = CASES[name]
    entropy = answer_entropy(torch.tensor([keys]), ALL, torch.tensor(likelihoods, dtype=dtype))
    assert_equals(entropy, [golden(name)[0]])
    assert_equals(entropy_discount(entropy, alpha=alpha, group_size=4), [golden(name)[1]])


def test_equally_likely_completions_give_the_entropy_of_the_counts() -> None:
    entropy = answer_entropy(torch.tensor([[0, 0, 1, 2]]), ALL, torch.zeros(1, 4, dtype=torch.float64))
    assert_equals(entropy, [golden("seed.discrete_counts_A_A_B_C")])


def test_a_configured_group_of_one_is_not_discounted() -> None:
    assert entropy_discount(torch.tensor([0.7]), alpha=1.0, group_size=1).tolist() == [1.0]

"""Credit: golden numbers, exact zeros, invalid completions."""

from itertools import combinations
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden import golden
from support.numbers import assert_equals, both_precisions, everything_valid
from support.properties import Group, groups, quick

from maxent_grpo.objective.advantages import (
    batch_standardised_advantages,
    centred_advantages,
    group_spread,
    leave_one_out_advantages,
    pass_at_k_advantages,
    standardised_advantages,
    whitened_advantages,
)

REWARDS = {"R1": [1.0, 0.0, 0.0, 0.0], "R2": [1.0, 0.0, 0.0, 1.0], "R3": [1.0, 1.0, 1.0, 1.0], "R4": [0.7]}
RULES = {"grpo": standardised_advantages, "drgrpo": centred_advantages, "rloo": leave_one_out_advantages}


@both_precisions
@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize("rule", RULES)
def test_advantages_match_the_worked_examples(rule: str, rewards: str, dtype: torch.dtype) -> None:
    utilities = torch.tensor([REWARDS[rewards]], dtype=dtype)
    # a group of one has no others to be compared with: its advantage is 0, not its reward
    expected = [0.0] if (rule, rewards) == ("rloo", "R4") else golden(f"adv.{rule}.{rewards}")
    assert_equals(RULES[rule](utilities, everything_valid(utilities))[0], expected)


def test_the_deviation_is_that_of_a_sample_not_of_a_population() -> None:
    utilities = torch.tensor([REWARDS["R1"]], dtype=torch.float64)
    actual = standardised_advantages(utilities, everything_valid(utilities))[0]
    population = torch.tensor(golden("adv.grpo_popstd.R1"), dtype=torch.float64)
    assert (actual - population).abs().max() > 0.2


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 0.95, 1 / 3, -5.3, 1e4])
@pytest.mark.parametrize("rule", RULES)
@both_precisions
def test_equal_utilities_give_exactly_zero_advantage(rule: str, value: float, dtype: torch.dtype) -> None:
    for size in range(2, 65):
        utilities = torch.full((1, size), value, dtype=dtype)
        assert torch.equal(RULES[rule](utilities, everything_valid(utilities)), torch.zeros(1, size, dtype=dtype))


def test_without_the_comparison_rounding_would_give_a_group_of_equals_an_advantage() -> None:
    utilities = torch.full((1, 11), 0.7)
    centred = utilities - utilities.sum(dim=-1, keepdim=True) / 11
    assert centred.abs().max() > 0


@pytest.mark.parametrize("rule", RULES)
def test_equal_utilities_of_the_valid_are_neutral_whatever_the_invalid_hold(rule: str) -> None:
    utilities = torch.tensor([[0.7, float("nan"), 0.7, float("inf"), 0.7]])
    valid = torch.tensor([[True, False, True, False, True]])
    assert torch.equal(RULES[rule](utilities, valid), torch.zeros(1, 5))


@pytest.mark.parametrize("value", [0.0, 1.0, 0.7])
@pytest.mark.parametrize("rule", RULES)
def test_a_group_of_one_has_advantage_zero_not_its_reward(rule: str, value: float) -> None:
    alone = torch.tensor([[value]])
    one_left = torch.tensor([[0.2, value, float("nan")]])
    assert torch.equal(RULES[rule](alone, everything_valid(alone)), torch.zeros(1, 1))
    assert torch.equal(RULES[rule](one_left, torch.tensor([[False, True, False]])), torch.zeros(1, 3))


@pytest.mark.parametrize("rule", RULES)
def test_a_group_without_a_valid_completion_has_advantages_zero(rule: str) -> None:
    utilities = torch.full((2, 3), float("nan"))
    assert torch.equal(RULES[rule](utilities, torch.zeros(2, 3, dtype=torch.bool)), torch.zeros(2, 3))


def test_an_abstaining_reward_leaves_the_baseline_and_the_deviation_alone() -> None:
    utilities = torch.tensor([[1.0, 0.0, float("nan"), 1.0]], dtype=torch.float64)
    valid = torch.tensor([[True, True, False, True]])
    assert_equals(centred_advantages(utilities, valid)[0], [1 / 3, -2 / 3, 0.0, 1 / 3])
    without = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    expected = standardised_advantages(without, everything_valid(without))[0]
    assert_equals(standardised_advantages(utilities, valid)[0][[0, 1, 3]], expected)


def test_groups_do_not_see_each_other() -> None:
    both = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    scale = 0.5**0.5 / (0.5**0.5 + 1e-4)
    wide = 1.5 / (4.5**0.5 + 1e-4)
    expected = [[scale * 0.5**0.5, -scale * 0.5**0.5], [-wide, wide]]
    assert_equals(standardised_advantages(both, everything_valid(both)), expected)


def test_the_spread_is_over_valid_completions() -> None:
    utilities = torch.tensor([[3.0, 1.0, 9.0], [2.0, 5.0, 5.0], [1.0, 2.0, 3.0]])
    valid = torch.tensor([[True, True, False], [False, True, False], [False, False, False]])
    assert group_spread(utilities, valid).tolist() == [2.0, 0.0, 0.0]


@quick
@given(group=groups(), order=st.randoms(use_true_random=False), shift=st.floats(-3, 3))
def test_advantages_follow_a_permutation_and_ignore_a_shift(group: Group, order: Random, shift: float) -> None:
    size = group.utilities.shape[1]
    permutation = list(range(size))
    order.shuffle(permutation)
    valid = everything_valid(group.utilities)
    for rule in RULES.values():
        plain = rule(group.utilities, valid)
        assert_equals(rule(group.utilities[:, permutation], valid), plain[:, permutation], tolerance=1e-9)
        assert abs(float(plain.sum())) < 1e-9
    if group_spread(group.utilities, valid) > 1e-6:
        moved = centred_advantages(group.utilities + shift, valid)
        assert_equals(moved, centred_advantages(group.utilities, valid), tolerance=1e-9)


TWO_GROUPS = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]


@both_precisions
def test_batch_scaling_uses_one_deviation_for_all_groups(dtype: torch.dtype) -> None:
    utilities = torch.tensor(TWO_GROUPS, dtype=dtype)
    advantages = batch_standardised_advantages(utilities, everything_valid(utilities))
    assert_equals(advantages, golden("adv.batchstd.R1+R1110"))


@both_precisions
def test_whitening_counts_every_token(dtype: torch.dtype) -> None:
    utilities = torch.tensor(TWO_GROUPS, dtype=dtype)
    lengths = torch.tensor([[2, 3, 1, 2], [2, 2, 4, 1]])
    whitened = whitened_advantages(utilities, everything_valid(utilities), lengths)
    assert_equals(whitened, golden("adv.rpp_baseline"))
    tokens = whitened.flatten().double().repeat_interleave(lengths.flatten())
    assert float(tokens.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(tokens.std(correction=1)) == pytest.approx(1.0, abs=1e-6)


def test_the_moments_of_the_whitening_are_those_of_the_tokens() -> None:
    """a_i counts once for each of its completion's tokens: whitened = (a - mean) / sqrt(var + 1e-8), solved for both."""
    utilities = torch.tensor(TWO_GROUPS, dtype=torch.float64)
    lengths = torch.tensor([[2, 3, 1, 2], [2, 2, 4, 1]])
    valid = everything_valid(utilities)
    centred = centred_advantages(utilities, valid)
    whitened = whitened_advantages(utilities, valid, lengths)
    mean, variance = golden("adv.rpp_baseline.tokmean_tokvar")
    scale = (centred[0, 0] - centred[0, 1]) / (whitened[0, 0] - whitened[0, 1])
    assert float(scale**2 - 1e-8) == pytest.approx(variance, abs=1e-12)
    assert float(centred[0, 0] - scale * whitened[0, 0]) == pytest.approx(mean, abs=1e-12)


def test_whitening_without_any_signal_is_exactly_zero() -> None:
    utilities = torch.full((3, 4), 0.7)
    whitened = whitened_advantages(utilities, everything_valid(utilities), torch.ones(3, 4, dtype=torch.long))
    assert torch.equal(whitened, torch.zeros(3, 4))


@pytest.mark.parametrize(("right", "expected"), [(2, "passk.adv_n8c2k4"), (5, "passk.adv_n8c5k4")])
def test_set_rewards_match_the_worked_examples(right: int, expected: str) -> None:
    is_right = (torch.arange(8) < right).unsqueeze(0)
    advantages = pass_at_k_advantages(is_right, everything_valid(is_right), k=4)[0]
    good, bad = golden(expected)
    assert_equals(advantages, [good] * right + [bad] * (8 - right))
    assert float(advantages.sum()) == pytest.approx(0.0, abs=1e-12)


def test_set_rewards_equal_the_average_over_all_sets() -> None:
    for size, right, k in ((6, 2, 3), (5, 1, 2), (7, 3, 4), (4, 1, 1)):
        is_right = [place < right for place in range(size)]
        sets = list(combinations(range(size), k))
        solved = torch.tensor([float(any(is_right[i] for i in chosen)) for chosen in sets], dtype=torch.float64)
        mean, deviation = solved.mean(), solved.std(correction=0)
        by_member = [
            torch.stack([(value - mean) / deviation for chosen, value in zip(sets, solved, strict=True) if i in chosen])
            for i in range(size)
        ]
        expected = torch.stack([values.mean() for values in by_member])
        flags = torch.tensor([is_right])
        assert_equals(pass_at_k_advantages(flags, everything_valid(flags), k=k)[0], expected)


def test_sets_larger_than_the_group_carry_no_signal() -> None:
    flags = torch.tensor([[True, False, False]])
    assert not pass_at_k_advantages(flags, everything_valid(flags), k=4).any()
    two_left = torch.tensor([[True, True, False]])
    assert not pass_at_k_advantages(flags, two_left, k=3).any()

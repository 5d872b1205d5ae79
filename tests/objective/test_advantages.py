"""Credit: golden numbers, exact zeros, invalid completions."""

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden import golden
from support.numbers import assert_equals, both_precisions, everything_valid
from support.properties import Group, groups, quick

from maxent_grpo.objective.advantages import centred_advantages, group_spread, standardised_advantages

REWARDS = {"R1": [1.0, 0.0, 0.0, 0.0], "R2": [1.0, 0.0, 0.0, 1.0], "R3": [1.0, 1.0, 1.0, 1.0], "R4": [0.7]}
RULES = {"grpo": standardised_advantages, "drgrpo": centred_advantages}


@both_precisions
@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize("rule", RULES)
def test_advantages_match_the_worked_examples(rule: str, rewards: str, dtype: torch.dtype) -> None:
    utilities = torch.tensor([REWARDS[rewards]], dtype=dtype)
    assert_equals(RULES[rule](utilities, everything_valid(utilities))[0], golden(f"adv.{rule}.{rewards}"))


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

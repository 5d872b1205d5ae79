"""Utilities reshaped by their group: worked examples, order, keys that are missing."""

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals, both_precisions, everything_valid

from maxent_grpo.objective.shaping import (
    NO_KEY,
    key_counts,
    overlong_penalty,
    uniqueness_utilities,
    unlikeliness_utilities,
)

KEYS = torch.tensor([[0, 0, 0, 1, 2]])
REWARDS = [[1.0, 1.0, 1.0, 1.0, 0.0]]


@both_precisions
def test_equal_answers_share_one_reward(dtype: torch.dtype) -> None:
    utilities = torch.tensor(REWARDS, dtype=dtype)
    shaped = uniqueness_utilities(utilities, everything_valid(utilities), KEYS, power=1.0)
    assert_equals(shaped[0], golden("uniq.inverse_cluster"))
    assert torch.equal(uniqueness_utilities(utilities, everything_valid(utilities), KEYS, power=0.0), utilities)


def test_a_completion_without_a_key_is_an_answer_of_its_own() -> None:
    keys = torch.tensor([[3, NO_KEY, NO_KEY, 3]])
    assert key_counts(keys, everything_valid(keys)).tolist() == [[2, 1, 1, 2]]
    assert key_counts(keys, torch.tensor([[True, True, True, False]])).tolist() == [[1, 1, 1, 1]]


def test_a_penalty_is_not_shared() -> None:
    utilities = torch.tensor([[-1.0, -1.0, 1.0]])
    keys = torch.tensor([[0, 0, 1]])
    assert uniqueness_utilities(utilities, everything_valid(keys), keys, power=1.0).tolist() == [[-1.0, -1.0, 1.0]]


@both_precisions
def test_the_least_likely_right_answer_keeps_its_reward(dtype: torch.dtype) -> None:
    utilities = torch.tensor([[1.0, 1.0, 0.0, 1.0]], dtype=dtype)
    mean_logp = torch.tensor([[-0.2, -1.0, -0.5, -0.8]], dtype=dtype)
    shaped = unlikeliness_utilities(utilities, everything_valid(utilities), mean_logp, discount=0.25)
    assert_equals(shaped[0], golden("unlik.r_[1,1,0,1]_lp"))


def test_equally_likely_completions_are_discounted_alike_in_any_order() -> None:
    utilities = torch.ones(1, 4, dtype=torch.float64)
    mean_logp = torch.tensor([[-1.0, -0.5, -1.0, -2.0]], dtype=torch.float64)
    shaped = unlikeliness_utilities(utilities, everything_valid(utilities), mean_logp, discount=1.0)
    assert_equals(shaped[0], [1 - 1.5 / 4, 1 - 3 / 4, 1 - 1.5 / 4, 1.0])
    order = torch.tensor([2, 3, 1, 0])
    moved = unlikeliness_utilities(utilities[:, order], everything_valid(utilities), mean_logp[:, order], discount=1.0)
    assert torch.equal(moved, shaped[:, order])


def test_invalid_completions_do_not_count_in_the_ranks() -> None:
    valid = torch.tensor([[True, False, True]])
    shaped = unlikeliness_utilities(torch.ones(1, 3), valid, torch.tensor([[-1.0, -5.0, -2.0]]), discount=0.5)
    assert shaped[0, 0] == pytest.approx(1 - 0.5 / 2)
    assert shaped[0, 2] == 1.0


def test_the_overlong_penalty_matches_the_worked_example() -> None:
    expected = golden("dapo.overlong_Lmax20_cache4")
    lengths = torch.tensor([[int(length) for length in expected]])
    assert_equals(overlong_penalty(lengths, limit=20, buffer=4)[0], list(expected.values()))

"""Which tokens train: worked examples, numbers of tokens, ties, padding, and independence of the order of rows."""

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals, both_precisions

from maxent_grpo.objective.token_selection import (
    clipped_covariance_tokens,
    entropy_threshold,
    high_entropy_tokens,
    largest_covariance_tokens,
    num_selected,
    token_covariance,
)

LOGP = [[-0.1, -2.0, -0.3], [-1.2, -0.05, -3.0]]
ADVANTAGE = [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]
ALL = torch.ones(2, 3, dtype=torch.bool)
PRIORITY = torch.tensor([[0.9, 0.1, 0.2], [0.3, 0.4, 0.5]], dtype=torch.float64)


def covariance(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return token_covariance(torch.tensor(LOGP, dtype=dtype), torch.tensor(ADVANTAGE, dtype=dtype), ALL)


@both_precisions
def test_the_covariance_matches_the_worked_example(dtype: torch.dtype) -> None:
    assert_equals(covariance(dtype).flatten(), golden("cov.values"))


def test_the_largest_covariance_belongs_to_a_rare_token_of_a_bad_completion() -> None:
    chosen = largest_covariance_tokens(covariance(), ALL, PRIORITY, number=num_selected(ALL, 0.2))
    assert chosen.flatten().nonzero().flatten().tolist() == [golden("cov.klcov_top1_index_ratio0.2")]


def test_padding_takes_no_part_whatever_stands_there() -> None:
    wide_mask = torch.cat([ALL, torch.zeros(2, 2, dtype=torch.bool)], dim=1)
    poison = torch.full((2, 2), torch.nan, dtype=torch.float64)
    wide_logp = torch.cat([torch.tensor(LOGP, dtype=torch.float64), poison], dim=1)
    wide_advantage = torch.cat([torch.tensor(ADVANTAGE, dtype=torch.float64), poison], dim=1)
    found = token_covariance(wide_logp, wide_advantage, wide_mask)
    assert_equals(found[:, :3], covariance())
    assert not found[:, 3:].any()
    wide_priority = torch.cat([PRIORITY, poison], dim=1)
    held = largest_covariance_tokens(found, wide_mask, wide_priority, number=100)
    assert torch.equal(held, wide_mask)
    assert torch.equal(
        largest_covariance_tokens(found, wide_mask, wide_priority, number=1)[:, :3], covariance() == covariance().max()
    )
    assert not high_entropy_tokens(wide_logp, wide_mask, quantile=0.0)[:, 3:].any()


def test_the_number_of_tokens_is_a_share_rounded_down_but_at_least_one() -> None:
    assert [num_selected(ALL, ratio) for ratio in (2e-4, 0.2, 0.5, 1.0)] == [1, 1, 3, 6]


def test_left_out_tokens_lie_inside_the_bounds_and_are_the_smallest_priorities() -> None:
    values = covariance()
    priority = PRIORITY
    inside = (values > 0.05) & (values < 1.5)
    one = clipped_covariance_tokens(values, ALL, priority, number=1, low=0.05, high=1.5)
    assert one.sum() == 1
    assert (one & ~inside).sum() == 0
    assert priority[one] == priority[inside].min()
    everything = clipped_covariance_tokens(values, ALL, priority, number=100, low=0.05, high=1.5)
    assert torch.equal(everything, inside)
    assert not clipped_covariance_tokens(values, ALL & False, priority, number=1, low=0.05, high=1.5).any()


def test_the_choice_moves_with_the_rows() -> None:
    order = torch.tensor([1, 0])
    priority = torch.rand(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    chosen = clipped_covariance_tokens(covariance(), ALL, priority, number=2, low=-9.0, high=9.0)
    moved = token_covariance(
        torch.tensor(LOGP, dtype=torch.float64)[order], torch.tensor(ADVANTAGE, dtype=torch.float64)[order], ALL
    )
    again = clipped_covariance_tokens(moved, ALL, priority[order], number=2, low=-9.0, high=9.0)
    assert torch.equal(again, chosen[order])


def test_equal_covariances_are_held_by_priority_and_so_move_with_the_rows() -> None:
    nothing = torch.zeros(2, 3, dtype=torch.float64)
    chosen = largest_covariance_tokens(nothing, ALL, PRIORITY, number=2)
    assert chosen.tolist() == [[False, True, True], [False, False, False]]
    assert torch.equal(largest_covariance_tokens(nothing, ALL, PRIORITY.flip(0), number=2), chosen.flip(0))


def test_the_threshold_and_its_tokens_match_the_worked_example() -> None:
    entropy = torch.tensor([[0.1, 2.0, 0.3, 1.5, 0.05], [0.9, 0.2, 0.01, 0.6, 0.4]], dtype=torch.float64)
    mask = torch.ones_like(entropy, dtype=torch.bool)
    threshold, chosen = golden("top20.threshold_and_mask")
    assert_equals(entropy_threshold(entropy, mask, quantile=0.8), threshold)
    assert high_entropy_tokens(entropy, mask, quantile=0.8).flatten().long().tolist() == chosen


@pytest.mark.parametrize("quantile", [0.0, 0.25, 0.5, 0.8, 1.0])
def test_the_threshold_is_the_linear_quantile(quantile: float) -> None:
    entropy = torch.rand(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    mask = entropy > 0.2
    assert_equals(entropy_threshold(entropy, mask, quantile=quantile), torch.quantile(entropy[mask], quantile))


def test_equal_entropies_are_all_kept_and_an_empty_step_keeps_none() -> None:
    entropy = torch.full((2, 3), 0.7)
    assert high_entropy_tokens(entropy, ALL, quantile=0.8).all()
    assert not high_entropy_tokens(entropy, ALL & False, quantile=0.8).any()

"""Weights for the gap between sampler and trainer: every mode, detached, blind to padding."""

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals, both_precisions
from torch import Tensor

from maxent_grpo.objective.mismatch import mismatch_weights
from maxent_grpo.objective.ratios import log_ratio, sequence_ratio

SAMPLED = [[-1.0, -2.0, -0.5]]
OLD = [[-0.9, -0.7, -0.6]]
ALL = torch.ones(1, 3, dtype=torch.bool)


def weights(dtype: torch.dtype, mode: str, cap: float, floor: float = 0.5) -> Tensor:
    old, sampled = torch.tensor(OLD, dtype=dtype), torch.tensor(SAMPLED, dtype=dtype)
    return mismatch_weights(old, sampled, ALL, mode=mode, cap=cap, floor=floor)[0]


@both_precisions
def test_token_weights_match_the_worked_examples(dtype: torch.dtype) -> None:
    assert_equals(weights(dtype, "token_truncate", 1e9), golden("tis.rho_token"))
    assert_equals(weights(dtype, "token_truncate", 2.0), golden("tis.truncate2"))
    assert_equals(weights(dtype, "token_mask", 2.0), golden("tis.mask_0.5_2"))


@both_precisions
def test_sequence_weights_match_the_worked_examples(dtype: torch.dtype) -> None:
    truncated, masked = golden("tis.seq_trunc3_mask3")
    assert_equals(weights(dtype, "sequence_truncate", 1e9), [golden("tis.rho_seq")] * 3)
    assert_equals(weights(dtype, "sequence_truncate", 3.0), [truncated] * 3)
    assert_equals(weights(dtype, "sequence_mask", 3.0), [masked] * 3)
    assert_equals(weights(dtype, "sequence_mask", 4.0), [golden("tis.rho_seq")] * 3)


@both_precisions
def test_the_geometric_mean_of_the_gap_matches_the_worked_example(dtype: torch.dtype) -> None:
    gap = log_ratio(torch.tensor(OLD, dtype=dtype), torch.tensor(SAMPLED, dtype=dtype), ALL)
    assert_equals(sequence_ratio(gap, ALL)[0, 0], golden("tis.geo"))


def test_the_floor_masks_tokens_and_not_sequences() -> None:
    assert weights(torch.float64, "token_mask", 2.0, floor=1.0).tolist()[2] == 0.0
    assert weights(torch.float64, "token_mask", 2.0, floor=0.5).tolist()[2] > 0.0
    unlikely = mismatch_weights(
        torch.full((1, 10), -1.0), torch.full((1, 10), -0.8), torch.ones(1, 10, dtype=torch.bool),
        mode="sequence_mask", cap=2.0, floor=0.5,
    )  # fmt: skip
    assert_equals(unlikely, torch.full((1, 10), 0.1353352832), tolerance=1e-6)


def test_a_long_completion_with_a_small_drift_is_masked_by_its_product() -> None:
    sampled, mask = torch.zeros(1, 500) - 1.0, torch.ones(1, 500, dtype=torch.bool)
    assert torch.equal(
        mismatch_weights(sampled + 0.01, sampled, mask, mode="sequence_mask", cap=3.0, floor=0.5), torch.zeros(1, 500)
    )


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_equal_log_probabilities_give_weight_one_and_padding_no_nan_and_no_gradient(mode: str) -> None:
    mask = torch.tensor([[True, True, False], [False, False, False]])
    values = torch.tensor([[-1.0, -2.0, float("nan")], [float("nan"), float("inf"), -torch.inf]], requires_grad=True)
    result = mismatch_weights(values, values.clone(), mask, mode=mode, cap=2.0, floor=0.5)
    assert torch.equal(result[mask], torch.ones(2))
    assert torch.isfinite(result).all()
    assert not result.requires_grad


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_truncate", "sequence_mask", "token_mask"])
def test_extreme_gaps_stay_finite_in_single_precision(mode: str) -> None:
    old, sampled = torch.tensor([[0.0, 0.0], [-1e4, -1e4]]), torch.tensor([[-1e4, -1e4], [0.0, 0.0]])
    result = mismatch_weights(old, sampled, torch.ones(2, 2, dtype=torch.bool), mode=mode, cap=2.0, floor=0.5)
    assert torch.isfinite(result).all()
    assert float(result.max()) <= 2.0

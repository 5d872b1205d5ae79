"""Log-probabilities, entropies and sequence scores from logits."""

import math

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals, both_precisions

from maxent_grpo.objective.logprobs import (
    chosen_logp,
    log_distribution,
    sequence_score,
    sequence_sum,
    token_entropy,
)

LOGITS = [2.0, 1.0, 0.0, -1.0]


@both_precisions
def test_entropy_and_its_gradient_match_the_worked_example(dtype: torch.dtype) -> None:
    logits = torch.tensor([LOGITS], dtype=dtype, requires_grad=True)
    entropy = token_entropy(log_distribution(logits))
    (slope,) = torch.autograd.grad(entropy.sum(), logits)
    assert_equals(entropy[0], golden("ent.H"))
    assert_equals(slope[0], golden("ent.dH_dz"))
    assert_equals(slope.sum(), golden("ent.T2.dH_dz_sum0"))


@both_precisions
def test_impossible_tokens_contribute_nothing_to_entropy_or_gradient(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf], [-torch.inf, 3.0, -torch.inf]], dtype=dtype, requires_grad=True)
    entropy = token_entropy(log_distribution(logits))
    (slope,) = torch.autograd.grad(entropy.sum(), logits)
    assert_equals(entropy, [math.log(2), 0.0])
    assert_equals(slope, torch.zeros(2, 3))


def test_a_restricted_vocabulary_has_the_entropy_of_what_is_left() -> None:
    logits = torch.tensor([[*LOGITS[:2], -torch.inf, *LOGITS[2:]]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(token_entropy(log_distribution(logits)).sum(), logits)
    assert_equals(slope[0, [0, 1, 3, 4]], golden("ent.dH_dz"))
    assert slope[0, 2] == 0


def test_a_chosen_token_beside_an_impossible_one_has_a_finite_gradient() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    logp = chosen_logp(log_distribution(logits), torch.tensor([1]))
    (slope,) = torch.autograd.grad(logp.sum(), logits)
    assert_equals(logp, [-math.log(2)])
    assert_equals(slope, [[-0.5, 0.5, 0.0]])


def test_half_precision_logits_are_normalised_in_single_precision() -> None:
    logits = torch.tensor([LOGITS], dtype=torch.bfloat16)
    log_probs = log_distribution(logits)
    assert log_probs.dtype == torch.float32
    assert_equals(log_probs, torch.log_softmax(torch.tensor([LOGITS], dtype=torch.float64), dim=-1))


@pytest.mark.parametrize("extreme", [1e4, -1e4])
def test_extreme_logits_stay_finite_in_single_precision(extreme: float) -> None:
    logits = torch.tensor([[extreme, 0.0, 1.0]], requires_grad=True)
    log_probs = log_distribution(logits)
    total = token_entropy(log_probs).sum() + chosen_logp(log_probs, torch.tensor([1])).sum()
    (slope,) = torch.autograd.grad(total, logits)
    assert torch.isfinite(log_probs).all()
    assert torch.isfinite(slope).all()


def test_the_temperature_of_sampling_divides_the_logits() -> None:
    logits = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    logp = chosen_logp(log_distribution(logits / 0.5), torch.tensor([0]))
    assert_equals(logp, [-0.1269280110429726])


def test_chosen_log_probabilities_come_from_their_own_place() -> None:
    log_probs = torch.log_softmax(torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)), dim=-1)
    ids = torch.tensor([[0, 4, 2], [3, 3, 1]])
    expected = [[float(log_probs[i, t, ids[i, t]]) for t in range(3)] for i in range(2)]
    assert_equals(chosen_logp(log_probs, ids), expected)


def test_a_sequence_sum_ignores_padding_in_value_and_gradient() -> None:
    values = torch.tensor([[1.0, 2.0, float("nan")], [float("nan"), float("nan"), float("inf")]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    total = sequence_sum(values, mask)
    (slope,) = torch.autograd.grad(total.sum(), values)
    assert total.tolist() == [3.0, 0.0]
    assert torch.equal(slope, mask.float())


@both_precisions
def test_sequence_scores_are_summed_per_token_or_per_constant_length(dtype: torch.dtype) -> None:
    total, lengths = torch.tensor([-6.0, -4.0, 0.0], dtype=dtype), torch.tensor([3, 8, 0])
    scores = {
        mode: sequence_score(total, lengths, mode=mode, score_length=16).tolist() for mode in ("sum", "mean", "const")
    }
    assert scores == {"sum": [-6.0, -4.0, 0.0], "mean": [-2.0, -0.5, 0.0], "const": [-0.375, -0.25, 0.0]}

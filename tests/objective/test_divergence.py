"""Estimators of the token KL: values, expectations, and the gradient each has as a loss."""

import pytest
import torch
from support.golden import golden
from support.numbers import assert_equals, both_precisions
from torch import Tensor

from maxent_grpo.objective.divergence import KL_ESTIMATORS, kl_k3, kl_k3_is, token_divergence

LOGITS_P = [0.5, 0.0, -1.0]
LOGITS_Q = [0.0, 0.4, -0.2]


def distributions(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    log_p = torch.log_softmax(torch.tensor(LOGITS_P, dtype=dtype), dim=-1)
    return log_p, torch.log_softmax(torch.tensor(LOGITS_Q, dtype=dtype), dim=-1)


def loss_gradient(name: str, dtype: torch.dtype) -> Tensor:
    """Expected gradient, on the logits, of the estimator as a loss on samples of p that stay fixed."""
    logits = torch.tensor(LOGITS_P, dtype=dtype, requires_grad=True)
    log_p = torch.log_softmax(logits, dim=-1)
    fixed = log_p.detach().exp()
    d = log_p - torch.log_softmax(torch.tensor(LOGITS_Q, dtype=dtype), dim=-1)
    estimate = kl_k3_is(d, (log_p - log_p.detach()).exp()) if name == "k3_is" else KL_ESTIMATORS[name](d)
    return torch.autograd.grad((fixed * estimate).sum(), logits)[0]


@both_precisions
def test_values_per_token_match_the_worked_example(dtype: torch.dtype) -> None:
    log_p, log_q = distributions(dtype)
    assert_equals(log_p.exp(), golden("kl.p"))
    assert_equals(log_q.exp(), golden("kl.q"))
    for name, expected in zip(("k1", "k2", "k3"), golden("kl.k1k2k3_per_token"), strict=True):
        assert_equals(KL_ESTIMATORS[name](log_p - log_q), expected)


@both_precisions
def test_k1_and_k3_are_unbiased_and_k2_is_not(dtype: torch.dtype) -> None:
    log_p, log_q = distributions(dtype)
    exact = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="sum")
    assert_equals(exact, golden("kl.exact_pq"))
    assert_equals(torch.nn.functional.kl_div(log_p, log_q, log_target=True, reduction="sum"), golden("kl.exact_qp"))
    for name, expected in zip(("k1", "k2", "k3"), golden("kl.expect_under_p"), strict=True):
        mean = (log_p.exp() * KL_ESTIMATORS[name](log_p - log_q)).sum()
        assert_equals(mean, expected)
        assert (abs(float(mean) - golden("kl.exact_pq")) < 1e-6) == (name != "k2")


@both_precisions
def test_as_losses_k1_has_no_gradient_k2_the_reverse_one_and_k3_the_forward_one(dtype: torch.dtype) -> None:
    assert_equals(loss_gradient("k1", dtype), [0.0, 0.0, 0.0])
    assert_equals(loss_gradient("k1", dtype), golden("kl.loss_grad_k1"))
    assert_equals(loss_gradient("k2", dtype), golden("kl.true_grad_logits"))
    assert_equals(loss_gradient("k2", dtype), golden("kl.loss_grad_k2"))
    assert_equals(loss_gradient("k3", dtype), golden("kl.forwardKL_grad_logits"))
    assert_equals(loss_gradient("k3", dtype), golden("kl.loss_grad_k3"))


@both_precisions
def test_k3_weighted_by_the_ratio_has_the_reverse_gradient(dtype: torch.dtype) -> None:
    actual = loss_gradient("k3_is", dtype)
    assert_equals(actual, golden("kl.loss_grad_ratio_times_k3"))
    assert_equals(actual, golden("kl.true_grad_logits"))


@both_precisions
def test_k3_weighted_by_the_ratio_has_the_reverse_gradient_also_for_samples_of_an_older_policy(
    dtype: torch.dtype,
) -> None:
    old = torch.log_softmax(torch.tensor([-0.3, 0.6, 0.2], dtype=dtype), dim=-1)
    logits = torch.tensor(LOGITS_P, dtype=dtype, requires_grad=True)
    log_p = torch.log_softmax(logits, dim=-1)
    d = log_p - distributions(dtype)[1]
    expected_loss = (old.exp() * kl_k3_is(d, (log_p - old).exp())).sum()
    assert_equals(expected_loss, golden("kl.exact_pq"))
    assert_equals(torch.autograd.grad(expected_loss, logits)[0], golden("kl.true_grad_logits"))


def test_k3_weighted_by_the_ratio_moves_a_token_by_ratio_times_log_ratio_to_the_reference() -> None:
    logp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    ratio = (logp - torch.log(torch.tensor(0.25))).exp()
    estimate = kl_k3_is(logp + 2.0, ratio)
    assert_equals(estimate, [4 * torch.e**-1 * 0.36787944], tolerance=1e-7)
    assert_equals(torch.autograd.grad(estimate.sum(), logp)[0], [4 * torch.e**-1 * 1.0], tolerance=1e-7)


def test_the_true_gradient_is_that_of_the_exact_divergence() -> None:
    logits = torch.tensor(LOGITS_P, dtype=torch.float64, requires_grad=True)
    log_p = torch.log_softmax(logits, dim=-1)
    log_q = distributions(torch.float64)[1]
    (slope,) = torch.autograd.grad((log_p.exp() * (log_p - log_q)).sum(), logits)
    assert_equals(slope, golden("kl.true_grad_logits"))


@pytest.mark.parametrize(
    ("name", "value", "slope"), [("k1", 1.0, 1.0), ("k2", 0.5, 1.0), ("k3", 0.36787944, 0.63212056)]
)
def test_a_token_likelier_than_under_the_reference_is_pushed_down(name: str, value: float, slope: float) -> None:
    logp = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    d = token_divergence(logp, torch.tensor([[-2.0]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool))
    estimate = KL_ESTIMATORS[name](d)
    assert_equals(estimate, [[value]], tolerance=1e-8)
    assert_equals(torch.autograd.grad(estimate.sum(), logp)[0], [[slope]], tolerance=1e-8)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_equal_policies_have_divergence_exactly_zero(name: str) -> None:
    assert torch.equal(KL_ESTIMATORS[name](torch.zeros(4)), torch.zeros(4))


def test_k3_is_non_negative_and_bounded_also_for_extreme_tokens() -> None:
    d = torch.tensor([-1e4, -30.0, -2.0, -1e-3, 0.0, 1e-3, 3.0, 30.0, 1e4], requires_grad=True)
    estimate = kl_k3(d)
    (slope,) = torch.autograd.grad(estimate.sum(), d)
    assert float(estimate.detach().min()) >= 0
    assert float(estimate.detach().max()) == 10.0
    assert torch.isfinite(slope).all()
    assert slope[[0, 1, 7, 8]].tolist() == [0.0] * 4
    assert_equals(slope[[2, 6]], [1 - torch.e**2, 1 - torch.e**-3], tolerance=1e-5)


def test_padding_and_reference_get_no_gradient() -> None:
    mask = torch.tensor([[True, False]])
    logp = torch.tensor([[-1.0, float("nan")]], requires_grad=True)
    reference = torch.tensor([[-1.5, float("nan")]], requires_grad=True)
    d = token_divergence(logp, reference, mask)
    assert d.tolist() == [[0.5, 0.0]]
    slopes = torch.autograd.grad(kl_k3(d).sum(), [logp, reference], allow_unused=True)
    assert_equals(slopes[0], [[1 - torch.e**-0.5, 0.0]])
    assert slopes[1] is None

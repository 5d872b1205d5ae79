"""The listwise cross-entropy: value, gradient, fixed point, its relation to GRPO, and what it does not promise."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden import golden
from support.numbers import assert_equals, both_precisions, everything_valid
from support.properties import Group, groups, quick, temperatures
from torch import Tensor

from maxent_grpo.objective.weights import (
    listwise_cross_entropy,
    masked_log_softmax,
    maxent_log_weights,
    utility_log_q,
)

NUM_OUTCOMES = 5
RIGHT = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
START = torch.tensor([1.2, 0.3, -0.5, 0.8, -0.2], dtype=torch.float64)


def example_log_weights(dtype: torch.dtype) -> Tensor:
    utilities = torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=dtype)
    valid = everything_valid(utilities)
    log_q = utility_log_q(utilities, valid, temperature=1.0, epsilon=1e-6)
    reference = torch.tensor([[-1.0, -2.0, -0.5, -3.0]], dtype=dtype)
    return maxent_log_weights(log_q, reference, valid, tau=0.5, beta=0.5)


@both_precisions
def test_value_and_gradient_match_the_worked_example(dtype: torch.dtype) -> None:
    scores = torch.tensor([golden("lw.scores")], dtype=dtype, requires_grad=True)
    valid, log_w = everything_valid(scores), example_log_weights(dtype)
    term = listwise_cross_entropy(log_w, scores, valid)
    (slope,) = torch.autograd.grad(term.value.sum(), scores)
    assert_equals(masked_log_softmax(scores, valid).exp()[0], golden("lw.p_theta"))
    assert_equals(term.value[0], golden("lw.ce_loss"))
    assert_equals(term.coefficient[0], golden("lw.ce_grad_scores"))
    assert_equals(slope[0], golden("lw.ce_grad_scores"))
    divergence = term.value - (-(log_w.exp() * log_w).sum(dim=-1))
    assert_equals(divergence[0], golden("lw.kl_loss"))


@both_precisions
def test_the_likelihood_alone_has_the_weights_as_slope_and_no_restoring_force(dtype: torch.dtype) -> None:
    scores = torch.tensor([golden("lw.scores")], dtype=dtype)
    weights = example_log_weights(dtype).exp()
    assert_equals(-(weights * scores).sum(), golden("lw.wmle_loss"))
    assert_equals(-weights[0], golden("lw.wmle_grad_scores"))


def test_the_gradient_passes_gradcheck_with_an_invalid_completion() -> None:
    scores = torch.tensor([[-1.0, -2.0, -0.3, -4.0], [0.2, 0.1, 0.0, -0.1]], dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([[True, False, True, True], [True] * 4])
    targets = torch.tensor([[0.5, 0.0, 0.3, 0.2], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).log()
    assert torch.autograd.gradcheck(lambda s: listwise_cross_entropy(targets, s, valid).value, (scores,))


def test_back_propagating_the_coefficients_in_any_portions_is_the_same_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(6, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    features = torch.randn(4, 6, 3, dtype=torch.float64, generator=generator)
    log_w = torch.log_softmax(torch.randn(1, 4, dtype=torch.float64, generator=generator), dim=-1)

    def scores(rows: Tensor) -> Tensor:
        return (features[rows] * parameters).tanh().sum(dim=(-1, -2)).unsqueeze(0)

    everyone = torch.arange(4)
    valid = everything_valid(log_w)
    whole = listwise_cross_entropy(log_w, scores(everyone), valid)
    (expected,) = torch.autograd.grad(whole.value.sum(), parameters)
    slopes = listwise_cross_entropy(log_w, scores(everyone).detach(), valid).coefficient
    for portions in ([[0], [1, 2], [3]], [[0, 1, 2, 3]], [[3, 0], [2, 1]]):
        total = torch.zeros_like(parameters)
        for portion in portions:
            part = (slopes[:, portion] * scores(torch.tensor(portion))).sum()
            total += torch.autograd.grad(part, parameters)[0]
        assert_equals(total, expected)


def test_invalid_completions_have_no_slope_and_send_no_nan_back() -> None:
    scores = torch.tensor([[-1.0, float("nan"), -2.0], [float("nan")] * 3], dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([[True, False, True], [False] * 3])
    log_w = torch.tensor([[0.5, 0.0, 0.5], [0.0] * 3], dtype=torch.float64).log()
    term = listwise_cross_entropy(log_w, scores, valid)
    (slope,) = torch.autograd.grad(term.value.sum(), scores)
    kept = listwise_cross_entropy(log_w[:1, [0, 2]], scores[:1, [0, 2]].detach(), torch.ones(1, 2, dtype=torch.bool))
    assert_equals(term.value, [float(kept.value), 0.0])
    assert_equals(term.coefficient, [[*kept.coefficient[0, :1], 0.0, *kept.coefficient[0, 1:]], [0.0, 0.0, 0.0]])
    assert_equals(slope, term.coefficient)


def test_a_single_valid_completion_has_slope_exactly_zero() -> None:
    scores = torch.tensor([[-3.7, -1.2]])
    valid = torch.tensor([[True, False]])
    log_q = utility_log_q(torch.tensor([[1.0, 0.0]]), valid, temperature=1.0, epsilon=1e-6)
    log_w = maxent_log_weights(log_q, torch.zeros(1, 2), valid, tau=0.1, beta=0.0)
    term = listwise_cross_entropy(log_w, scores, valid)
    assert term.value.tolist() == [0.0]
    assert term.coefficient.tolist() == [[0.0, 0.0]]


def test_extreme_scores_stay_finite_in_single_precision() -> None:
    scores = torch.tensor([[-1e4, 0.0, -2e4, -5.0]], requires_grad=True)
    log_w = torch.tensor([[0.5, 0.0, 0.5, 0.0]]).log()
    term = listwise_cross_entropy(log_w, scores, everything_valid(scores))
    (slope,) = torch.autograd.grad(term.value.sum(), scores)
    assert torch.isfinite(term.value).all()
    assert_equals(slope, term.coefficient)
    assert_equals(float(term.value.detach()) * torch.ones(()), 15000.0067)


def test_the_weights_are_not_differentiated_when_they_arrive_detached_and_the_coefficient_says_so() -> None:
    utilities = torch.tensor([[1.0, 0.0, 0.5]], dtype=torch.float64)
    valid = everything_valid(utilities)
    log_q = utility_log_q(utilities, valid, temperature=1.0, epsilon=1e-6)
    log_w = maxent_log_weights(log_q, torch.zeros_like(log_q), valid, tau=0.3, beta=0.0)
    assert not log_w.requires_grad
    scores = log_w.clone().requires_grad_()
    term = listwise_cross_entropy(log_w, scores, valid)
    (slope,) = torch.autograd.grad(term.value.sum(), scores)
    assert float(slope.abs().max()) < 1e-15


@both_precisions
def test_small_steps_follow_the_centred_entropy_regularised_reward(dtype: torch.dtype) -> None:
    utilities = torch.tensor([[0.02, 0.0, 0.01, 0.0]], dtype=dtype)
    scores = torch.tensor([[0.01, -0.01, 0.0, 0.02]], dtype=dtype)
    valid = everything_valid(utilities)
    log_q = utility_log_q(utilities, valid, temperature=1.0, epsilon=0.0)
    log_w = maxent_log_weights(log_q, torch.zeros_like(scores), valid, tau=1.0, beta=0.0)
    step = -4 * listwise_cross_entropy(log_w, scores, valid).coefficient[0]
    exact, first_order = golden("lw.softreward_firstorder")
    assert_equals(step, exact)
    assert_equals(step, first_order, tolerance=5e-4)


def enumerated_groups(size: int) -> tuple[Tensor, Tensor]:
    """Every ordered group of ``size`` outcomes, and a function's worth of their indices one-hot: [M, G], [M, G, V]."""
    outcomes = torch.tensor(list(itertools.product(range(NUM_OUTCOMES), repeat=size)))
    return outcomes, torch.nn.functional.one_hot(outcomes, NUM_OUTCOMES).double()


def expected_ascent(logits: Tensor, *, size: int, tau: float, beta: float, reference: Tensor) -> Tensor:
    """Exact expected ascent direction of the listwise term on softmax logits, all groups enumerated."""
    outcomes, places = enumerated_groups(size)
    log_pi = torch.log_softmax(logits, dim=-1)
    scores = log_pi[outcomes]
    valid = everything_valid(scores)
    log_q = utility_log_q(RIGHT[outcomes], valid, temperature=1.0, epsilon=0.0)
    log_w = maxent_log_weights(log_q, reference[outcomes], valid, tau=tau, beta=beta)
    slopes = listwise_cross_entropy(log_w, scores, valid).coefficient
    probability = scores.sum(dim=-1).exp()
    return -(probability[:, None, None] * slopes[:, :, None] * places).sum(dim=(0, 1))


def test_the_expected_direction_matches_exact_enumeration() -> None:
    nowhere = torch.zeros(NUM_OUTCOMES, dtype=torch.float64)
    actual = expected_ascent(START, size=3, tau=0.25, beta=0.0, reference=nowhere)
    assert_equals(actual, golden("lw.tabular_ascent_dir_T0.25"))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("beta", [0.0, 0.15])
def test_the_tempered_target_is_a_fixed_point_for_every_group_size(size: int, beta: float) -> None:
    tau = 0.25
    reference = torch.log_softmax(START, dim=-1)
    star = torch.log_softmax((RIGHT + beta * reference) / (tau + beta), dim=-1)
    if beta == 0:
        assert_equals(star.exp(), golden("lw.tabular_fixed_point_T0.25"))
        assert golden("lw.tabular_grad_at_fixed_point_max") < 1e-15
    here = expected_ascent(star, size=size, tau=tau, beta=beta, reference=reference)
    elsewhere = expected_ascent(START, size=size, tau=tau, beta=beta, reference=reference)
    assert float(here.abs().max()) < 1e-14
    assert float(elsewhere.abs().max()) > 1e-2


def test_the_weighted_likelihood_is_not_stationary_where_the_cross_entropy_is() -> None:
    star = torch.log_softmax(RIGHT / 0.25, dim=-1)
    outcomes, places = enumerated_groups(3)
    scores = star[outcomes]
    valid = everything_valid(scores)
    log_q = utility_log_q(RIGHT[outcomes], valid, temperature=1.0, epsilon=0.0)
    weights = maxent_log_weights(log_q, torch.zeros_like(scores), valid, tau=0.25, beta=0.0).exp()
    direction = places - star.exp()
    step = (scores.sum(dim=-1).exp()[:, None, None] * weights[:, :, None] * direction).sum(dim=(0, 1))
    assert_equals(step, golden("lw.wmle_tabular_grad_at_fixed_point"))
    assert float(step.abs().max()) > 5e-3


def test_a_step_lowers_the_forward_divergence_but_may_raise_the_reverse_one() -> None:
    example = golden("lw.counterexample_forwardKL_down_F_down")
    target = torch.tensor([example["w"]], dtype=torch.float64)
    scores = torch.tensor([example["p"]], dtype=torch.float64).log()
    valid = everything_valid(scores)
    term = listwise_cross_entropy(target.log(), scores, valid)
    after = masked_log_softmax(scores - 0.05 * term.coefficient, valid)
    assert_equals(after.exp()[0], example["p_after"])
    entropy = -(target * target.log()).sum(dim=-1)
    forward = [term.value - entropy, listwise_cross_entropy(target.log(), after, valid).value - entropy]
    reverse = [(log_p.exp() * (log_p - target.log())).sum() for log_p in (scores, after)]
    assert_equals(torch.stack(forward)[:, 0], example["fwd"])
    assert_equals(torch.stack(reverse), example["rev"])
    assert forward[1] < forward[0]
    assert reverse[1] > reverse[0]


@quick
@given(group=groups(smallest=1), tau=temperatures, beta=st.floats(0, 2))
def test_slopes_sum_to_zero_equal_autograd_and_shift_nothing(group: Group, tau: float, beta: float) -> None:
    valid = everything_valid(group.utilities)
    log_q = utility_log_q(group.utilities, valid, temperature=1.0, epsilon=1e-6)
    log_w = maxent_log_weights(log_q, group.reference, valid, tau=tau, beta=beta)
    scores = group.scores.clone().requires_grad_()
    term = listwise_cross_entropy(log_w, scores, valid)
    (slope,) = torch.autograd.grad(term.value.sum(), scores)
    assert_equals(slope, term.coefficient)
    assert abs(float(term.coefficient.sum().detach())) < 1e-12
    moved = listwise_cross_entropy(log_w, group.scores + 7.0, valid)
    assert_equals(moved.value, term.value.detach(), tolerance=1e-10)

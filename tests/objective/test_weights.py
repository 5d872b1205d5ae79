"""The maximum-entropy target: golden numbers, its variational problem, limits, invalid completions, neutral groups."""

import math
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden import golden
from support.numbers import assert_equals, both_precisions, everything_valid
from support.properties import Group, groups, quick, temperatures
from torch import Tensor

from maxent_grpo.objective.weights import (
    listwise_groups,
    masked_log_softmax,
    maxent_log_weights,
    utility_log_q,
    variational_objective,
    weight_entropy,
)

REWARDS = [1.0, 0.0, 0.0, 1.0]
REFERENCE = [-1.0, -2.0, -0.5, -3.0]
EXTREMES = [(0.5, 0.0), (0.5, 0.5), (0.0, 0.5), (0.05, 0.0), (1e6, 0.0), (1e-3, 1e3), (0.0, 0.0)]


def log_q_of(utilities: Tensor, *, temperature: float = 1.0, epsilon: float = 1e-6) -> Tensor:
    return utility_log_q(utilities, everything_valid(utilities), temperature=temperature, epsilon=epsilon)


def weights_of(log_q: Tensor, reference: Tensor, tau: float, beta: float) -> Tensor:
    return maxent_log_weights(log_q, reference, everything_valid(log_q), tau=tau, beta=beta).exp()


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    taken = torch.isfinite(log_p)
    safe = log_p.masked_fill(~taken, 0.0)
    return torch.where(taken, safe.exp() * (safe - log_q.masked_fill(~taken, 0.0)), 0.0).sum(dim=-1)


@both_precisions
def test_the_utility_distribution_matches_the_worked_example(dtype: torch.dtype) -> None:
    utilities = torch.tensor([REWARDS], dtype=dtype)
    assert_equals(log_q_of(utilities).exp()[0], golden("lw.q"))
    assert_equals(log_q_of(utilities, temperature=0.25, epsilon=0.01).exp()[0], golden("lw.q_eps0.01_Tq0.25"))


@both_precisions
def test_the_reference_is_normalised_over_the_group(dtype: torch.dtype) -> None:
    reference = torch.tensor([REFERENCE], dtype=dtype)
    assert_equals(masked_log_softmax(reference, everything_valid(reference))[0], golden("lw.logref_group"))


@both_precisions
@pytest.mark.parametrize(("tau", "beta"), EXTREMES)
def test_the_target_weights_match_the_worked_examples(tau: float, beta: float, dtype: torch.dtype) -> None:
    log_q = log_q_of(torch.tensor([REWARDS], dtype=dtype))
    expected = golden(f"lw.w.tau{float(tau)}.beta{float(beta)}")
    assert_equals(weights_of(log_q, torch.tensor([REFERENCE], dtype=dtype), tau, beta)[0], expected)


@both_precisions
def test_the_exponent_divides_by_tau_plus_beta_and_not_by_tau(dtype: torch.dtype) -> None:
    log_q, reference = log_q_of(torch.tensor([REWARDS], dtype=dtype)), torch.tensor([REFERENCE], dtype=dtype)
    wrong = golden("lw.w_wrong_denom_tau_only.tau0.5.beta0.5")
    assert_equals(torch.softmax((log_q + 0.5 * reference) / 0.5, dim=-1)[0], wrong)
    actual = weights_of(log_q, reference, 0.5, 0.5)[0]
    assert (actual.double() - torch.tensor(wrong, dtype=torch.float64)).abs().max() > 0.2
    assert_equals(weights_of(log_q, reference, 0.0, 0.5)[0], wrong)


@both_precisions
def test_the_objective_and_the_gap_match_the_worked_examples(dtype: torch.dtype) -> None:
    log_q = log_q_of(torch.tensor([REWARDS], dtype=dtype))
    reference = torch.log_softmax(torch.tensor([REFERENCE], dtype=dtype), dim=-1)
    best = weights_of(log_q, reference, 0.5, 0.5).log()
    uniform = torch.full_like(best, math.log(0.25))
    value = {
        name: variational_objective(log_w, log_q, reference, tau=0.5, beta=0.5)
        for name, log_w in {"best": best, "uniform": uniform}.items()
    }
    assert_equals(value["best"][0], golden("lw.F_wstar"))
    assert_equals(value["uniform"][0], golden("lw.F_uniform"))
    assert_equals((value["best"] - value["uniform"])[0], golden("lw.gap_uniform"))
    assert_equals(kl(uniform, best)[0], golden("lw.gap_uniform"))


@pytest.mark.parametrize("temperature", [1.0, 10.0, 100.0])
@both_precisions
def test_flat_weights_tend_to_centred_advantages(temperature: float, dtype: torch.dtype) -> None:
    log_q = log_q_of(torch.tensor([REWARDS], dtype=dtype), epsilon=0.0)
    weights = weights_of(log_q, torch.zeros(1, 4, dtype=dtype), temperature, 0.0)[0]
    scaled = torch.tensor(golden(f"lw.T*G*(w-1/G).T{temperature}"), dtype=torch.float64)
    assert_equals(weights, 0.25 + scaled / (4 * temperature))
    assert_equals(scaled, [0.5, -0.5, -0.5, 0.5], tolerance=0.1 / temperature**2)


def test_the_temperatures_of_q_and_of_the_target_multiply_when_q_has_no_floor() -> None:
    utilities = torch.tensor([[0.3, -0.4, 1.0]], dtype=torch.float64)
    reference = torch.zeros(1, 3, dtype=torch.float64)
    one = weights_of(log_q_of(utilities, temperature=0.5, epsilon=0.0), reference, 0.4, 0.0)
    other = weights_of(log_q_of(utilities, temperature=2.0, epsilon=0.0), reference, 0.1, 0.0)
    assert_equals(one, torch.softmax(utilities / 0.2, dim=-1))
    assert_equals(one, other)


def test_the_floor_bounds_the_gap_of_log_q() -> None:
    log_q = log_q_of(torch.tensor([[1000.0, 0.0, 0.0]]), epsilon=1e-6)
    assert_equals(log_q[0, 1:], [math.log(1e-6)] * 2, tolerance=1e-5)
    assert float(log_q_of(torch.tensor([[5.0, 0.0]]), epsilon=0.9).exp()[0, 1]) == pytest.approx(0.5)


def test_without_a_floor_q_may_be_smaller_than_any_number() -> None:
    utilities, reference = torch.tensor([[800.0, 0.0]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    weights = weights_of(log_q_of(utilities, epsilon=0.0), reference, 400.0, 0.0)
    assert_equals(weights, torch.softmax(utilities / 400.0, dim=-1))


def test_temperatures_beyond_all_measure_have_their_limits() -> None:
    log_q = log_q_of(torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64))
    reference = torch.tensor([[-40.0, -41.0, -42.0]], dtype=torch.float64)
    assert_equals(weights_of(log_q, reference, 0.5, 1e307), torch.softmax(reference, dim=-1))
    assert_equals(weights_of(log_q, reference, 1e308, 1e308), torch.softmax(reference / 2, dim=-1))


def test_zero_temperatures_are_uniform_on_the_exact_ties_among_the_valid() -> None:
    utilities = torch.tensor([[9.0, 0.5, 0.5, 0.1]])
    valid = torch.tensor([[False, True, True, True]])
    log_q = utility_log_q(utilities, valid, temperature=1.0, epsilon=1e-6)
    log_w = maxent_log_weights(log_q, torch.tensor([[0.0, -5.0, -1.0, 3.0]]), valid, tau=0.0, beta=0.0)
    assert_equals(log_w.exp()[0], [0.0, 0.5, 0.5, 0.0])


@pytest.mark.parametrize(("tau", "beta"), [(0.5, 0.5), (0.1, 0.0), (0.0, 0.3), (0.0, 0.0)])
def test_invalid_completions_have_no_weight_and_leave_the_others_alone(tau: float, beta: float) -> None:
    poison = float("nan")
    utilities = torch.tensor([[1.0, poison, 0.0, 0.5]], dtype=torch.float64)
    reference = torch.tensor([[-1.0, poison, -2.0, -0.5]], dtype=torch.float64)
    valid = torch.tensor([[True, False, True, True]])
    log_q = utility_log_q(utilities, valid, temperature=1.0, epsilon=1e-6)
    log_w = maxent_log_weights(log_q, reference, valid, tau=tau, beta=beta)
    kept = [0, 2, 3]
    alone = log_q_of(utilities[:, kept])
    assert_equals(log_q[:, kept], alone)
    assert_equals(log_w.exp()[:, kept], weights_of(alone, reference[:, kept], tau, beta))
    assert log_w[0, 1] == -torch.inf
    assert log_q[0, 1] == -torch.inf


@pytest.mark.parametrize(("tau", "beta"), [(0.5, 0.5), (0.0, 0.0)])
def test_a_group_without_valid_completions_has_weight_nowhere(tau: float, beta: float) -> None:
    utilities = torch.full((1, 3), float("nan"))
    nobody = torch.zeros(1, 3, dtype=torch.bool)
    log_q = utility_log_q(utilities, nobody, temperature=1.0, epsilon=1e-6)
    log_w = maxent_log_weights(log_q, utilities, nobody, tau=tau, beta=beta)
    assert torch.equal(log_w, torch.full((1, 3), -torch.inf))
    assert weight_entropy(log_w).tolist() == [0.0]


def test_a_group_of_one_has_weight_one() -> None:
    log_q = log_q_of(torch.tensor([[0.3]]))
    assert weights_of(log_q, torch.tensor([[-7.0]]), 0.1, 0.2).tolist() == [[1.0]]


def test_extreme_log_probabilities_stay_finite_in_single_precision() -> None:
    utilities = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    reference = torch.tensor([[-1e4, -2e4, 0.0, -1e4]])
    for tau, beta in ((0.1, 0.5), (1e-3, 1e3), (0.0, 1e-3), (1e-3, 0.0)):
        weights = weights_of(log_q_of(utilities), reference, tau, beta)
        assert torch.isfinite(weights).all()
        assert float(weights.sum()) == pytest.approx(1.0)


def test_the_effective_size_of_uniform_weights_is_their_number() -> None:
    log_w = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]).log()
    assert_equals(weight_entropy(log_w).exp(), [4.0, 2.0, 1.0])


@quick
@given(group=groups(), tau=temperatures, beta=st.floats(0, 2), mix=st.lists(st.floats(0.01, 1), min_size=8, max_size=8))
def test_no_other_weights_do_better_and_the_gap_is_the_scaled_divergence(
    group: Group, tau: float, beta: float, mix: list[float]
) -> None:
    log_q = log_q_of(group.utilities)
    reference = torch.log_softmax(group.reference, dim=-1)
    best = weights_of(log_q, reference, tau, beta).log()
    other = torch.tensor([mix[: best.shape[1]]], dtype=torch.float64)
    other = (other / other.sum()).log()
    top = variational_objective(best, log_q, reference, tau=tau, beta=beta)
    value = variational_objective(other, log_q, reference, tau=tau, beta=beta)
    assert float(top - value) >= -1e-10
    assert_equals(top - value, (tau + beta) * kl(other, best), tolerance=1e-8)
    assert_equals(top, (tau + beta) * torch.logsumexp((log_q + beta * reference) / (tau + beta), -1), tolerance=1e-9)


@quick
@given(group=groups(), tau=temperatures, beta=st.floats(0, 2), shift=st.floats(-50, 50))
def test_a_constant_added_to_utilities_or_reference_changes_no_weight(
    group: Group, tau: float, beta: float, shift: float
) -> None:
    plain = weights_of(log_q_of(group.utilities), group.reference, tau, beta)
    assert_equals(weights_of(log_q_of(group.utilities + shift), group.reference, tau, beta), plain, tolerance=1e-9)
    assert_equals(weights_of(log_q_of(group.utilities), group.reference + shift, tau, beta), plain, tolerance=1e-9)


@quick
@given(group=groups(), tau=temperatures, beta=st.floats(0, 2), order=st.randoms(use_true_random=False))
def test_weights_follow_a_permutation_of_the_group(group: Group, tau: float, beta: float, order: Random) -> None:
    permutation = list(range(group.utilities.shape[1]))
    order.shuffle(permutation)
    plain = weights_of(log_q_of(group.utilities), group.reference, tau, beta)
    moved = weights_of(log_q_of(group.utilities[:, permutation]), group.reference[:, permutation], tau, beta)
    assert_equals(moved, plain[:, permutation])


@quick
@given(group=groups(), tau=temperatures, beta=st.floats(0, 2), factor=st.floats(1, 4))
def test_entropy_grows_with_tau_and_divergence_falls_with_beta(
    group: Group, tau: float, beta: float, factor: float
) -> None:
    log_q, valid = log_q_of(group.utilities), everything_valid(group.utilities)
    reference = torch.log_softmax(group.reference, dim=-1)
    here = maxent_log_weights(log_q, reference, valid, tau=tau, beta=beta)
    hotter = maxent_log_weights(log_q, reference, valid, tau=factor * tau, beta=beta)
    closer = maxent_log_weights(log_q, reference, valid, tau=tau, beta=factor * beta)
    assert float(weight_entropy(hotter) - weight_entropy(here)) >= -1e-10
    assert float(kl(closer, reference) - kl(here, reference)) <= 1e-10


@pytest.mark.parametrize(
    ("policy", "keep_right", "keep_wrong", "expected"),
    [
        ("keep", True, True, [True, True, True, True, True, False]),
        ("skip_all_wrong", True, False, [True, True, False, True, False, False]),
        ("skip", False, False, [True, False, False, False, False, False]),
    ],
)
def test_neutral_groups_take_part_as_the_policy_says(
    policy: str, keep_right: bool, keep_wrong: bool, expected: list[bool]
) -> None:
    poison = float("nan")
    utilities = torch.tensor(
        [
            [1.0, 0.0, 0.0],
            [1.0, 1.0, 1.0],
            [0.3, 0.3, 0.3],
            [1.0, poison, 1.0],
            [0.0, 1.0, poison],
            [poison, poison, poison],
        ]
    )
    valid = torch.tensor(
        [[True] * 3, [True] * 3, [True] * 3, [True, False, True], [True, False, False], [False] * 3],
    )
    taken = listwise_groups(utilities, valid, utilities >= 0.999, keep_right=keep_right, keep_wrong=keep_wrong)
    assert taken.tolist() == expected, policy


def test_the_threshold_tells_right_neutral_groups_from_wrong_ones() -> None:
    utilities = torch.tensor([[0.8, 0.8], [0.79, 0.79]])
    taken = listwise_groups(utilities, everything_valid(utilities), utilities >= 0.8, keep_right=True, keep_wrong=False)
    assert taken.tolist() == [True, False]

"""The maximiser of the objective over listed answers: worked numbers, optimality, limits."""

import math

import pytest
import torch

from maxent_grpo.objective.optimum import divergence_from_optimum, optimal_log_policy


def binary(num_right: int, num: int = 81) -> torch.Tensor:
    utilities = torch.zeros(1, num, dtype=torch.float64)
    utilities[0, :num_right] = 1.0
    return utilities


def optimum(utilities: torch.Tensor, reference: torch.Tensor | None = None, **settings: float) -> torch.Tensor:
    chosen = {"tau": 0.1, "beta": 0.0, "q_temperature": 1.0} | settings
    reference = torch.zeros_like(utilities) if reference is None else reference
    return optimal_log_policy(utilities, reference, ~utilities.isnan(), **chosen)


def value(log_pi: torch.Tensor, utilities: torch.Tensor, reference: torch.Tensor, tau: float, beta: float) -> float:
    """J(pi) = E[r] + tau H - beta KL, by its definition."""
    pi = log_pi.exp()
    return float((pi * (utilities - tau * log_pi - beta * (log_pi - reference))).sum())


@pytest.mark.parametrize(("num_right", "expected"), [(2, 0.99821), (5, 0.99931), (10, 0.99968)])
def test_the_optimum_of_81_answers_has_the_worked_mass_and_spreads_it_evenly(num_right: int, expected: float) -> None:
    pi = optimum(binary(num_right)).exp()[0]
    assert float(pi[:num_right].sum()) == pytest.approx(expected, abs=5e-6)
    assert float(pi.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(pi[:num_right].max() - pi[:num_right].min()) == 0.0


def test_no_other_policy_has_a_larger_objective_and_the_gap_is_the_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    utilities = torch.rand(1, 6, dtype=torch.float64, generator=generator)
    reference = torch.log_softmax(torch.randn(1, 6, dtype=torch.float64, generator=generator), dim=-1)
    tau, beta = 0.3, 0.2
    best = optimum(utilities, reference, tau=tau, beta=beta)
    for _ in range(20):
        other = torch.log_softmax(torch.randn(1, 6, dtype=torch.float64, generator=generator), dim=-1)
        gap = value(best, utilities, reference, tau, beta) - value(other, utilities, reference, tau, beta)
        divergence = float((other.exp() * (other - best)).sum())
        assert gap == pytest.approx((tau + beta) * divergence, abs=1e-12)
        assert gap > 0


def test_the_reference_enters_with_its_share_and_a_constant_of_it_cancels() -> None:
    utilities, reference = binary(1, 3), torch.tensor([[-1.0, -2.0, -4.0]], dtype=torch.float64)
    log_pi = optimum(utilities, reference, tau=0.25, beta=0.75)
    assert float(log_pi[0, 1] - log_pi[0, 2]) == pytest.approx(0.75 * 2.0)
    assert torch.allclose(log_pi, optimum(utilities, reference - 7.0, tau=0.25, beta=0.75))


def test_scores_over_a_constant_length_count_the_reward_that_often() -> None:
    log_pi = optimum(binary(1, 3), tau=0.5, score_length=4.0)
    assert float(log_pi[0, 0] - log_pi[0, 1]) == pytest.approx(4.0 / 0.5)


def test_answers_without_a_utility_have_no_place_in_the_optimum() -> None:
    utilities = torch.tensor([[1.0, math.nan, 0.0]], dtype=torch.float64)
    log_pi = optimal_log_policy(
        utilities.nan_to_num(0.0), torch.zeros_like(utilities), ~utilities.isnan(), tau=1.0, beta=0.0, q_temperature=1.0
    )
    assert log_pi[0, 1] == -math.inf
    assert float(log_pi.exp().sum()) == pytest.approx(1.0)


def test_the_divergence_vanishes_at_the_optimum_and_grows_by_the_mass_that_is_elsewhere() -> None:
    log_pi = optimum(binary(2, 5), tau=0.0)  # zero probability on the wrong answers
    assert float(divergence_from_optimum(log_pi, log_pi.clamp(min=-50.0))) == pytest.approx(0.0, abs=1e-12)
    policy = torch.log_softmax(torch.arange(5, dtype=torch.float64), dim=-1).unsqueeze(0)
    by_hand = sum(0.5 * (math.log(0.5) - float(policy[0, n])) for n in range(2))
    assert float(divergence_from_optimum(log_pi, policy)) == pytest.approx(by_hand)
    elsewhere = divergence_from_optimum(log_pi, policy + math.log(0.25))
    assert float(elsewhere) == pytest.approx(by_hand + math.log(4.0))

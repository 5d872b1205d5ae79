"""The laws of the controllers: worked examples, and their answer to steps of the target on simulated plants."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from support.golden import golden

from maxent_grpo.objective.control import (
    additive_step,
    halved_or_doubled,
    linear_target,
    multiplicative_step,
    peak_target,
    proportional_integral,
    smoothed,
    solve_increasing,
    temperature_step,
)
from maxent_grpo.objective.weights import maxent_log_weights, weight_entropy

UTILITIES = [1.0, 0.0, 0.25, 0.5]
GROUP = torch.tensor([UTILITIES], dtype=torch.float64)
EVERYONE = torch.ones_like(GROUP, dtype=torch.bool)
BOUNDS = {"low": 1e-3, "high": 10.0}


def entropy_at(tau: float) -> float:
    """The plant: H(w) of one group's target weights with beta = 0, from 0 to log 4; in plain numbers, for speed."""
    best = max(UTILITIES)
    gaps = [(utility - best) / tau for utility in UTILITIES]
    total = sum(map(math.exp, gaps))
    return math.log(total) - sum(gap * math.exp(gap) for gap in gaps) / total


def slope_at(tau: float) -> float:
    """dH / d log tau by central difference."""
    step = 1e-5
    return (entropy_at(tau * math.exp(step)) - entropy_at(tau * math.exp(-step))) / (2 * step)


def tau_for(entropy: float) -> float:
    return solve_increasing(entropy_at, entropy, **BOUNDS).argument


def entropy_loop(
    tau: float, target: Callable[[int], float], steps: int, *, rate: float = 0.05, ema: float = 0.9
) -> list[float]:
    """tau after each step of the closed loop."""
    average, taus = None, []
    for step in range(steps):
        average = smoothed(average, entropy_at(tau), ema)
        tau = temperature_step(tau, average, target(step), learning_rate=rate, **BOUNDS).value
        taus.append(tau)
    return taus


def settled_after(errors: list[float], tolerance: float) -> int:
    """The first step from which on every error is within the tolerance."""
    outside = [step for step, error in enumerate(errors) if abs(error) > tolerance]
    return outside[-1] + 1 if outside else 0


@pytest.mark.parametrize("tau", [1e-3, 0.1, 0.5, 10.0])
def test_the_plant_is_the_entropy_of_the_target_weights(tau: float) -> None:
    log_w = maxent_log_weights(GROUP, torch.zeros_like(GROUP), EVERYONE, tau=tau, beta=0.0)
    assert entropy_at(tau) == pytest.approx(float(weight_entropy(log_w)), abs=1e-12)


def test_the_entropy_law_follows_the_worked_example() -> None:
    tau, average, trace = 0.5, None, []
    target = 0.7 * math.log(4)
    assert target == pytest.approx(golden("ctl.tau_target"), abs=1e-15)
    for measured in (1.0, 0.8, 0.6, 0.9):
        average = smoothed(average, measured, 0.9)
        tau = temperature_step(tau, average, target, learning_rate=0.5, **BOUNDS).value
        trace.append([tau, average])
    for found, expected in zip(trace, golden("ctl.tau_logspace_trace"), strict=True):
        assert found == pytest.approx(expected, rel=1e-14)


def test_the_proportional_law_follows_the_worked_example() -> None:
    law = {"target": 0.1, "clip": 0.2, "horizon": 10.0}
    assert multiplicative_step(0.1, 0.2, **law) == pytest.approx(golden("ctl.kl_prop_b0.1_kl0.2_t0.1_h10"), rel=1e-15)
    assert multiplicative_step(0.1, 0.05, **law) == pytest.approx(golden("ctl.kl_prop_b0.1_kl0.05"), rel=1e-15)
    assert multiplicative_step(0.0, 0.5, **law) == golden("ctl.kl_prop_b0") == 0


def test_the_law_of_ppo_follows_the_worked_example() -> None:
    assert [halved_or_doubled(0.1, kl, 0.1) for kl in (0.05, 0.1, 0.2)] == golden("ctl.kl_ppo")


def test_the_proportional_integral_law_follows_the_worked_example() -> None:
    integral, betas = 0.0, []
    for kl in (0.2, 0.15, 0.1, 0.05):
        beta, saturated, integral = proportional_integral(
            0.1, kl, 0.1, integral, gain=0.5, integral_gain=0.1, low=1e-6, high=10.0
        )
        assert not saturated
        betas.append(beta)
    assert betas == pytest.approx(golden("ctl.pid_beta"), rel=1e-13)


def test_the_annealed_target_follows_the_worked_example() -> None:
    found = [
        peak_target(step, start=0.5, peak=0.9, peak_step=10, final=0.3, horizon=50) for step in (0, 5, 10, 30, 50, 80)
    ]
    assert found == pytest.approx(golden("ctl.annealed_peak_.5_.9@10_.3@50"), rel=1e-14)


def test_schedules_end_at_their_horizon() -> None:
    assert [linear_target(step, start=0.8, final=0.2, horizon=4) for step in (0, 1, 2, 4, 9)] == pytest.approx(
        [0.8, 0.65, 0.5, 0.2, 0.2]
    )
    at_once = [peak_target(step, start=0.5, peak=0.9, peak_step=0, final=0.3, horizon=2) for step in (0, 1, 2)]
    assert at_once == pytest.approx([0.9, 0.6, 0.3])


def test_the_slope_of_the_entropy_is_the_one_its_stability_is_stated_with() -> None:
    """s = Var_w(log w) tau / (tau + beta), here with beta = 0.2 and a tilted reference."""
    reference, tau, beta, step = torch.tensor([[-1.0, -3.0, -2.0, -0.5]], dtype=torch.float64), 0.4, 0.2, 1e-5

    def log_w(at: float) -> torch.Tensor:
        return maxent_log_weights(GROUP, reference, EVERYONE, tau=at, beta=beta)

    numeric = (weight_entropy(log_w(tau * math.exp(step))) - weight_entropy(log_w(tau * math.exp(-step)))) / (2 * step)
    w, lw = log_w(tau).exp(), log_w(tau)
    variance = (w * lw.square()).sum() - (w * lw).sum().square()
    assert float(numeric) == pytest.approx(float(variance * tau / (tau + beta)), rel=1e-8)


@pytest.mark.parametrize(("start", "goal"), [(0.05, 1.2), (5.0, 0.4), (0.3, 0.9)])
def test_the_entropy_settles_at_its_target(start: float, goal: float) -> None:
    """Within 0.02 nats after at most 120 steps at rate 0.5, and it stays there."""
    taus = entropy_loop(start, lambda _: goal, 300, rate=0.5)
    assert settled_after([entropy_at(tau) - goal for tau in taus], 0.02) <= 120
    assert taus[-1] == pytest.approx(tau_for(goal), rel=0.05)
    assert all(BOUNDS["low"] <= tau <= BOUNDS["high"] for tau in taus)


def test_the_default_rate_approaches_without_ringing() -> None:
    goal, tau = 1.0, tau_for(1.0)
    rate = 0.9 * (1 - math.sqrt(0.9)) ** 2 / (1 - 0.9) / slope_at(tau)
    errors = [goal - entropy_at(value) for value in entropy_loop(tau * 1.2, lambda _: goal, 1500, rate=rate)]
    assert max(errors) < 1e-3 < -errors[0], "approached from one side"
    assert abs(errors[-1]) < 1e-3


@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_the_loop_is_stable_up_to_the_stated_rate(ema: float) -> None:
    """rate * s < 2 (1 + rho) / (1 - rho): a small error shrinks just below the bound and grows just above it."""
    goal, tau = 1.0, tau_for(1.0)
    limit = 2 * (1 + ema) / (1 - ema) / slope_at(tau)
    for factor, shrinks in ((0.9, True), (1.1, False)):
        taus = entropy_loop(tau * 1.0005, lambda _: goal, 60, rate=factor * limit, ema=ema)
        errors = [abs(entropy_at(value) - goal) for value in taus]
        assert (max(errors[-10:]) < max(errors[:10])) == shrinks


def test_an_entropy_out_of_reach_does_not_wind_tau_up() -> None:
    """1000 steps against a bound, then a target inside: settled within 150 steps.

    A law that integrates beyond what it can set needs more than 500 to come back.
    """
    goals = [-0.5] * 1000 + [0.9] * 700
    taus = entropy_loop(0.5, lambda step: goals[step], len(goals), rate=0.5)
    assert taus[500:1000] == [BOUNDS["low"]] * 500
    assert settled_after([entropy_at(tau) - 0.9 for tau in taus[1000:]], 0.02) <= 150
    log_tau, average, wound = math.log(0.5), None, []
    for goal in goals:
        entropy = entropy_at(max(math.exp(log_tau), BOUNDS["low"]))
        wound.append(entropy)
        average = smoothed(average, entropy, 0.9)
        log_tau += 0.5 * (goal - average)
    assert settled_after([entropy - 0.9 for entropy in wound[1000:]], 0.02) > 500


def kl_loop(law: Callable[[float, float], float], beta: float, steps: int, *, pull: float = 0.02) -> list[float]:
    """KL after each step of a first-order plant: it relaxes to pull / beta at a quarter of the way each step."""
    kl, kls = 0.0, []
    for _ in range(steps):
        kl += 0.25 * (pull / max(beta, 1e-9) - kl) if beta > 0 else 0.25
        beta = min(max(law(beta, kl), 0.0), 10.0)
        kls.append(kl)
    return kls


KL_LAWS: dict[str, tuple[Callable[[float, float], float], int]] = {
    "multiplicative": (lambda beta, kl: multiplicative_step(beta, kl, 0.1, clip=0.2, horizon=2.0), 60),
    "additive": (lambda beta, kl: additive_step(beta, kl, 0.1, learning_rate=0.1), 150),
}


@pytest.mark.parametrize("name", KL_LAWS)
@pytest.mark.parametrize("start", [0.05, 1.0])
def test_the_kl_settles_at_its_target(name: str, start: float) -> None:
    """Within a tenth of the target after the stated number of steps."""
    law, steps = KL_LAWS[name]
    kls = kl_loop(law, start, 300)
    assert settled_after([kl / 0.1 - 1 for kl in kls], 0.1) <= steps


def test_only_the_additive_law_leaves_zero() -> None:
    additive = kl_loop(KL_LAWS["additive"][0], 0.0, 300)
    assert settled_after([kl / 0.1 - 1 for kl in additive], 0.1) <= 150
    assert kl_loop(KL_LAWS["multiplicative"][0], 0.0, 50)[-1] > 5, "nothing pulls"


def test_halving_keeps_the_kl_in_its_band() -> None:
    kls = kl_loop(lambda beta, kl: halved_or_doubled(beta, kl, 0.1), 0.2, 100)
    assert all(0.1 / 3 < kl < 0.3 for kl in kls[20:])


def integral_loop(goals: list[float], *, conditional: bool, high: float = 1.0) -> list[float]:
    """beta of the proportional-integral law against KL = 0.02 / beta, within [1e-3, high]; or with a sum that always grows."""
    beta, integral, betas = 0.1, 0.0, []
    for goal in goals:
        kl = 0.02 / beta
        before = integral
        beta, _, integral = proportional_integral(
            0.1, kl, goal, integral, gain=0.3, integral_gain=0.05, low=1e-3, high=high
        )
        if not conditional:
            integral = before + min(max(kl / goal - 1.0, -1.0), 1.0)
        betas.append(beta)
    return betas


def test_the_sum_does_not_wind_up_while_a_bound_holds() -> None:
    """300 steps of a target that would take beta = 4 > 1, then one that takes 0.2: settled within 100 steps, and with a sum
    that went on growing not within 250."""
    goals = [0.005] * 300 + [0.1] * 300
    wanted = 0.02 / 0.1
    frozen, wound = (integral_loop(goals, conditional=conditional) for conditional in (True, False))
    assert min(frozen[299], wound[299]) > 0.95, "held by the bound of 1"
    assert settled_after([beta / wanted - 1 for beta in frozen[300:]], 0.05) <= 100
    assert settled_after([beta / wanted - 1 for beta in wound[300:]], 0.05) >= 250
    assert all(1e-3 <= beta <= 1.0 for beta in frozen)


@pytest.mark.parametrize("goal", [0.05, 0.7, 1.3])
def test_bisection_solves_the_entropy(goal: float) -> None:
    solved = solve_increasing(entropy_at, goal, **BOUNDS)
    assert not solved.saturated
    assert entropy_at(solved.argument) == pytest.approx(goal, abs=1e-10)


def test_bisection_takes_the_nearest_bound_for_what_is_out_of_reach() -> None:
    assert solve_increasing(entropy_at, -0.1, **BOUNDS) == (BOUNDS["low"], True)
    assert solve_increasing(entropy_at, 1.5, **BOUNDS) == (BOUNDS["high"], True)
    assert solve_increasing(lambda x: x, BOUNDS["high"], **BOUNDS) == (BOUNDS["high"], False)
    assert solve_increasing(lambda x: x, BOUNDS["low"], **BOUNDS) == (BOUNDS["low"], False)

"""The closed form on a tabular policy, through the package's credit and loss: optima, training to them, and limits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from support.bandit import Bandit
from support.golden import golden
from support.steps import random_step, reward_computation, run_step, settings_for, targets_of
from torch import Tensor

from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.types.choices import NeutralGroups, ScoreMode
from maxent_grpo.training.types.runtime import ScoringSettings

REWARD = torch.tensor([1.0, 1.0, 0.0, 0.25, 0.0], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([0.4, -1.0, 0.8, 0.0, -0.3], dtype=torch.float64), 0)
SAMPLER = torch.log_softmax(torch.tensor([0.0, 0.7, -0.4, 0.2, 0.1], dtype=torch.float64), 0)
TEMPERATURES = [(0.5, 0.3), (0.5, 0.0), (0.0, 0.5)]


def bandit(name: str, *, tau: float, beta: float, neutral: NeutralGroups = NeutralGroups.keep) -> Bandit:
    """The method without a floor of q, which the closed form does not have."""
    settings = settings_for(name)
    weighting = settings.weighting
    weighting.tau, weighting.beta, weighting.q_epsilon, weighting.neutral_groups = tau, beta, 0.0, neutral
    return Bandit(settings, REWARD, REFERENCE)


def optimum(tau: float, beta: float) -> Tensor:
    """Logits of the stated optimum: pi proportional to exp(r / (tau + beta)) pi_ref^(beta / (tau + beta))."""
    return torch.log_softmax((REWARD + beta * REFERENCE) / (tau + beta), 0)


def divergence(target: Tensor, logits: Tensor) -> float:
    """KL(target || policy) [nats]."""
    return float((target.exp() * (target - torch.log_softmax(logits, 0))).sum())


@pytest.mark.parametrize(("tau", "beta"), TEMPERATURES)
@pytest.mark.parametrize(
    ("name", "sampler"),
    [("maxent_listwise", None), ("maxent_listwise", SAMPLER), ("gvpo", None), ("gvpo", SAMPLER), ("soft", None)],
    ids=["maxent_listwise", "maxent_listwise-any-sampler", "gvpo", "gvpo-any-sampler", "soft"],
)
def test_the_expected_gradient_vanishes_at_the_optimum_and_not_elsewhere(
    name: str, sampler: Tensor | None, tau: float, beta: float
) -> None:
    for neutral in NeutralGroups:
        method, best = bandit(name, tau=tau, beta=beta, neutral=neutral), optimum(tau, beta)
        assert float(method.expected_gradient(best, 3, sampler).abs().max()) < 1e-10
        assert float(method.expected_gradient(SAMPLER, 3, sampler).abs().max()) > 1e-3


@pytest.mark.parametrize(("name", "rate"), [("maxent_listwise", 3.0), ("soft", 4.0), ("gvpo", 1.0)])
def test_training_on_drawn_groups_reaches_the_optimum(name: str, rate: float) -> None:
    method, best = bandit(name, tau=0.5, beta=0.3), optimum(0.5, 0.3)
    start = torch.zeros(len(REWARD), dtype=torch.float64)
    reached = method.trained(start, num_steps=60, rate=rate)
    print(f"{name}: KL(optimum || policy) {divergence(best, start):.3g} -> {divergence(best, reached):.3g}")
    assert divergence(best, start) > 0.05
    assert divergence(best, reached) < 1e-6


def test_dr_grpo_trained_alike_does_not_reach_it() -> None:
    reached = bandit("dr_grpo", tau=0.5, beta=0.3).trained(torch.zeros(5, dtype=torch.float64), num_steps=60, rate=4.0)
    assert divergence(optimum(0.5, 0.3), reached) > 0.5


@pytest.mark.parametrize(
    ("tau", "beta", "limit"), [(1e9, 0.0, torch.zeros(5, dtype=torch.float64)), (0.3, 1e9, REFERENCE)]
)
def test_the_optimum_tends_to_uniform_as_tau_grows_and_to_the_reference_as_beta_does(
    tau: float, beta: float, limit: Tensor
) -> None:
    method = bandit("maxent_listwise", tau=tau, beta=beta)
    assert float(method.expected_gradient(limit, 3).abs().max()) < 1e-8
    assert float(method.expected_gradient(SAMPLER, 3).abs().max()) > 1e-3
    assert divergence(torch.log_softmax(limit, 0), method.trained(SAMPLER, num_steps=90, rate=3.0)) < 1e-6


def test_at_temperature_zero_the_target_is_the_arg_max_set() -> None:
    settings = bandit("maxent_listwise", tau=0.0, beta=0.0).settings
    step = Bandit(settings, REWARD, REFERENCE).drawn(torch.tensor([[0, 1, 2, 3], [2, 3, 4, 2]]), SAMPLER, SAMPLER)
    method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=1)
    weights = targets_of(step, method, settings.weighting, ScoreMode.sum).log_weights.exp()
    assert weights.tolist() == [[0.5, 0.5, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]


def changed(name: str, node: str, **changes: Any) -> ScoringSettings:
    settings = settings_for(name)
    setattr(settings, node, dataclasses.replace(getattr(settings, node), **changes))
    return settings


@pytest.mark.parametrize(
    "settings",
    [changed("maxent", "weighting", listwise_coef=0.0), changed("xdr", "row_weights", tau=None)],
    ids=["maxent-lambda-zero", "xdr-tau-infinite"],
)
def test_limits_that_are_dr_grpo_bit_for_bit(settings: ScoringSettings) -> None:
    for seed in range(3):
        found, expected = run_step(random_step(seed), settings), run_step(random_step(seed), settings_for("dr_grpo"))
        assert torch.equal(found.loss, expected.loss)
        assert torch.equal(found.gradient, expected.gradient)


@pytest.mark.parametrize("tau", [1e4, 1e6])
def test_at_a_high_temperature_the_centred_likelihood_is_dr_grpo(tau: float) -> None:
    step = random_step(seed=2)
    # both average over the same completions on-policy when all of them count
    everyone = torch.ones_like(step.valid)
    full = torch.arange(step.logp.shape[1]) < torch.randint(1, 6, (16, 1), generator=torch.Generator().manual_seed(0))
    known = torch.nan_to_num(step.utilities, nan=0.25)
    step = dataclasses.replace(step, utilities=known, valid=everyone, complete=everyone, mask=full, old_logp=step.logp)
    found = run_step(step, changed("maxent_centered", "weighting", listwise_coef=1.0, tau=tau, q_epsilon=0.0))
    expected = run_step(step, settings_for("dr_grpo"))
    assert float((found.gradient - expected.gradient).abs().max()) < 0.1 / tau
    assert float(expected.gradient.abs().max()) > 1e-3


def test_at_temperature_zero_tempered_rows_are_the_arg_max_set() -> None:
    step, settings = random_step(seed=2), changed("xdr", "row_weights", tau=0.0)
    plain, best = (
        torch.tensor(
            reward_computation(
                step, resolve_method(each, score_mode=ScoreMode.sum, max_completion_len=8), each.weighting
            ).advantage.grouped,
            dtype=torch.float64,
        )
        for each in (settings_for("dr_grpo"), settings)
    )
    lengths = step.lengths.view_as(plain)
    for a, weighted, n, valid in zip(plain, best, lengths, step.valid, strict=True):
        rows = [i for i in range(4) if valid[i]]
        risk = {i: float(a[i] * n[i]) for i in rows}
        ties = [i for i in rows if risk[i] == max(risk.values())]
        expected = [float(a[i]) * len(rows) / len(ties) if i in ties else 0.0 for i in range(4)]
        assert weighted.tolist() == pytest.approx(expected, abs=1e-12)


BINARY = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
LOGITS = torch.tensor([1.2, 0.3, -0.5, 0.8, -0.2], dtype=torch.float64)


def factor_of_dr_grpo(tau: float, size: int, *, scaled: bool) -> float:
    """The scalar between the expected gradients of tempered rows and of Dr.GRPO, by the number of right completions c.

    With P the probability of a right one and w the weights of one right and one wrong row, it is G [(1 - P) w_r + P w_w],
    averaged over the binomial law of c with weight c (G - c); one weight per prompt has c / G in place of P.
    """
    right = float(torch.softmax(LOGITS, 0)[:2].sum())
    total, norm = 0.0, 0.0
    for c in range(1, size):
        share = c / size
        good, bad = math.exp((1 - share) / tau), math.exp(-share / tau)
        z = c * good + (size - c) * bad
        at = share if scaled else right
        mass = math.comb(size, c) * right**c * (1 - right) ** (size - c) * share * (1 - share)
        total += mass * size * ((1 - at) * good + at * bad) / z
        norm += mass
    return total / norm


@pytest.mark.parametrize(("tau", "size"), [(0.25, 4), (0.05, 4), (1.0, 3)])
@pytest.mark.parametrize(("name", "scaled"), [("xdr", False), ("dr_grpo_scaled", True)])
def test_on_binary_rewards_tempering_multiplies_the_expected_gradient_of_dr_grpo_by_one_number(
    name: str, scaled: bool, tau: float, size: int
) -> None:
    plain = Bandit(settings_for("dr_grpo"), BINARY, REFERENCE).expected_gradient(LOGITS, size)
    tempered = Bandit(changed(name, "row_weights", tau=tau), BINARY, REFERENCE).expected_gradient(LOGITS, size)
    ratio = tempered / plain
    torch.testing.assert_close(
        ratio, torch.full_like(ratio, factor_of_dr_grpo(tau, size, scaled=scaled)), rtol=1e-10, atol=0
    )
    if (name, tau, size) == ("xdr", 0.25, 4):
        torch.testing.assert_close(ratio, torch.tensor(golden("xdr.tabular_ratio"), dtype=torch.float64))


def test_the_control_of_tempering_projects_it_on_dr_grpo_prompt_by_prompt() -> None:
    step = random_step(seed=2)

    def credit(name: str) -> Tensor:
        settings = settings_for(name)
        method = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=8)
        return torch.tensor(reward_computation(step, method, settings.weighting).advantage.grouped, dtype=torch.float64)

    plain, tempered, scaled = credit("dr_grpo"), credit("xdr"), credit("dr_grpo_scaled")
    for a, v, found in zip(plain.tolist(), tempered.tolist(), scaled.tolist(), strict=True):
        energy = sum(x * x for x in a)
        factor = sum(x * y for x, y in zip(v, a, strict=True)) / energy if energy else 0.0
        assert found == pytest.approx([factor * x for x in a], abs=1e-12)
    assert plain[0].any()
    assert not scaled[1].any()

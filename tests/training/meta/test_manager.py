"""The manager: its descent in log tau and log beta, its guard rails, its state, and how it settles on a plant of fixed groups."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.errors import CheckpointError
from maxent_grpo.objective.meta import (
    TargetGroups,
    dual_gradient,
    relative_entropy_target,
    sensitivities,
    weight_divergence,
)
from maxent_grpo.objective.weights import maxent_log_weights, utility_log_q, weight_entropy
from maxent_grpo.training.control.base import StepMeasurement
from maxent_grpo.training.control.meta import MetaManager
from maxent_grpo.training.types.choices import MetaOptimizer
from maxent_grpo.training.types.runtime import ControllerGradients
from maxent_grpo.training.types.weighting import ControllerValues

SGD: dict[str, Any] = {
    "optimizer": MetaOptimizer.sgd,
    "learning_rate": 1.0,
    "max_log_change": 100.0,
    "max_gradient": 1e9,
}


def manager(*, tau: float = 1.0, beta: float = 0.5, **settings: Any) -> MetaManager:
    return MetaManager(MetaControllerConfig(**settings), ControllerValues(tau, beta, 0.0))


def moved(made: MetaManager, *gradients: tuple[float, float]) -> ControllerValues:
    for tau_grad, beta_grad in gradients:
        made.apply(ControllerGradients(tau_grad, beta_grad))
    return made.values


def test_plain_descent_moves_the_logarithms_by_the_chain_rule() -> None:
    values = moved(manager(tau=2.0, beta=0.5, adapt_beta=True, **SGD), (0.3, -0.2))
    assert values.tau == pytest.approx(2.0 * math.exp(-2.0 * 0.3))
    assert values.beta == pytest.approx(0.5 * math.exp(0.5 * 0.2))
    assert values.kl_beta == 0.0


def test_adam_matches_torch() -> None:
    """The same gradients in log tau and log beta through torch's own Adam."""
    made = manager(tau=2.0, beta=0.5, adapt_beta=True, learning_rate=0.03, max_gradient=1e9)
    logs = torch.tensor([2.0, 0.5], dtype=torch.float64).log().requires_grad_()
    optimizer = torch.optim.Adam([logs], lr=0.03, eps=1e-12)
    for pair in ((0.3, -0.2), (0.1, 0.4), (-0.5, 0.0), (1e-9, 1e-3)):
        logs.grad = torch.tensor([pair[0] * made.values.tau, pair[1] * made.values.beta], dtype=torch.float64)
        optimizer.step()
        moved(made, pair)
        assert [made.values.tau, made.values.beta] == pytest.approx(logs.detach().exp().tolist(), rel=1e-12)


def test_beta_stays_unless_it_is_adapted() -> None:
    assert moved(manager(beta=0.5, **SGD), (0.1, -5.0)).beta == 0.5
    assert moved(manager(beta=0.0, adapt_beta=True, beta_min=0.0, **SGD), (0.1, -5.0)).beta == 0.0


def test_the_change_the_gradient_and_the_result_are_limited() -> None:
    free = {**SGD, "max_log_change": 0.1}
    made = manager(**free)
    assert moved(made, (-3.0, 0.0)).tau == pytest.approx(math.exp(0.1))
    assert made.metrics()["controller/limited"] == 1.0
    clipped = manager(tau=1.0, beta=1.0, adapt_beta=True, **{**SGD, "max_gradient": 0.5})
    assert moved(clipped, (3.0, -4.0)).tau == pytest.approx(math.exp(-0.3))
    assert clipped.values.beta == pytest.approx(math.exp(0.4))
    bound = manager(tau=0.012, tau_min=0.01, **SGD)
    assert moved(bound, (100.0, 0.0)).tau == 0.01
    assert bound.metrics()["controller/saturated"] == 1.0
    assert moved(manager(tau=9.0, tau_max=10.0, **SGD), (-1.0, 0.0)).tau == 10.0


@pytest.mark.parametrize("gradients", [None, ControllerGradients(math.nan, 0.0), ControllerGradients(0.0, math.inf)])
def test_without_a_finite_gradient_nothing_moves_and_it_is_counted(gradients: ControllerGradients | None) -> None:
    made = manager()
    before = made.state_dict()
    made.apply(gradients, {"controller/outer_reward": 0.5})
    assert made.state_dict() == {**before, "num_skipped": 1}
    assert made.metrics()["controller/skipped"] == 1.0
    assert made.metrics()["controller/outer_reward"] == 0.5
    assert "controller/tau_gradient" not in made.metrics()


def test_when_an_update_is_due_and_when_there_is_enough_to_learn_from() -> None:
    made = manager(every_n_steps=3, min_groups=4)
    assert [step for step in range(1, 10) if made.due(step)] == [3, 6, 9]
    for count, enough in ((3, False), (4, True)):
        made.update(StepMeasurement(count))
        assert made.can_learn is enough


def test_the_state_continues_exactly_through_its_file_format() -> None:
    gradients = [(0.3, -0.2), (0.1, 0.4), (-0.7, 0.2), (0.05, -0.1)]
    straight, first, second = (manager(adapt_beta=True) for _ in range(3))
    moved(straight, *gradients)
    moved(first, *gradients[:2])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    moved(second, *gradients[2:])
    assert second.state_dict() == straight.state_dict()


def test_the_state_of_another_controller_or_outside_the_bounds_is_refused() -> None:
    made = manager(tau_max=2.0)
    state = made.state_dict()
    with pytest.raises(
        CheckpointError, match="controller state is of kind 'fixed', controller=meta cannot continue it"
    ):
        made.load_state_dict({**state, "kind": "fixed"})
    with pytest.raises(CheckpointError, match="outside this run's bounds"):
        made.load_state_dict({**state, "tau": 3.0})


class Plant:
    """Groups that do not change: the entropy of their weights answers to tau and beta alone."""

    fraction, target_kl = 0.4, 0.1

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        utilities = (torch.rand(12, 8, generator=generator, dtype=torch.float64) < 0.4).double()
        utilities[:, 0], utilities[:, 1] = 1.0, 0.0
        reference = -3 * torch.rand(12, 8, generator=generator, dtype=torch.float64)
        valid = torch.ones_like(utilities, dtype=torch.bool)
        self.groups = TargetGroups(utility_log_q(utilities, valid, temperature=1.0, epsilon=1e-6), reference, valid)

    def gradients(self, values: ControllerValues) -> ControllerGradients:
        """Of the dual, mean over groups."""
        target = relative_entropy_target(self.groups, self.fraction)
        gradient = dual_gradient(
            self.groups, tau=values.tau, beta=values.beta, target_entropy=target, target_kl=self.target_kl
        )
        return ControllerGradients(float(gradient.tau.mean()), float(gradient.beta.mean()))

    def run(self, made: MetaManager, num_updates: int) -> list[ControllerValues]:
        values = []
        for _ in range(num_updates):
            made.apply(self.gradients(made.values))
            values.append(made.values)
        return values


@pytest.fixture(scope="module")
def plant() -> Plant:
    return Plant()


@pytest.fixture(scope="module")
def settled(plant: Plant) -> float:
    """tau at which the mean entropy is on target with beta = 0, by bisection."""
    low, high = 1e-3, 10.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        above = plant.gradients(ControllerValues(middle, 0.0, 0.0)).tau_grad > 0
        low, high = (low, middle) if above else (middle, high)
    return low


@pytest.mark.parametrize("start", [0.02, 5.0], ids=["from below", "from above"])
def test_adam_settles_within_the_distance_over_its_rate_and_stays(plant: Plant, settled: float, start: float) -> None:
    """About |log(start / target)| / learning_rate updates, none of them larger than max_log_change."""
    rate = 0.05
    made = manager(tau=start, beta=0.0, learning_rate=rate)
    updates = math.ceil(1.5 * abs(math.log(start / settled)) / rate) + 20
    taus = [value.tau for value in plant.run(made, updates + 100)]
    assert all(abs(math.log(tau / settled)) < 2 * rate for tau in taus[updates:])
    steps = [abs(math.log(after / before)) for before, after in pairwise([start, *taus])]
    assert max(steps) <= 0.1 + 1e-12
    assert taus[-1] == pytest.approx(settled, rel=0.02)


def test_plain_descent_is_stable_up_to_two_over_the_curvature(plant: Plant, settled: float) -> None:
    change = sensitivities(plant.groups, tau=settled, beta=0.0)
    curvature = settled**2 * float(change.entropy_tau.mean())

    def miss(share: float) -> float:
        made = manager(tau=settled * 1.001, beta=0.0, **{**SGD, "learning_rate": share * 2 / curvature})
        return abs(math.log(plant.run(made, 60)[-1].tau / settled))

    assert miss(0.9) < 1e-5
    assert miss(1.1) > 1e-2


def test_tau_and_beta_together_meet_both_targets(plant: Plant) -> None:
    """The targets are what the plant shows at one tau and beta, so that both can be met there and nowhere else."""
    aim = {"tau": 0.3, "beta": 0.2}
    log_weights = maxent_log_weights(plant.groups.log_q, plant.groups.log_reference, plant.groups.valid, **aim)
    entropy, kl = weight_entropy(log_weights), float(weight_divergence(log_weights, plant.groups).mean())
    made = manager(tau=0.6, beta=0.5, adapt_beta=True, learning_rate=0.02)
    for _ in range(400):
        values = made.values
        gradient = dual_gradient(plant.groups, tau=values.tau, beta=values.beta, target_entropy=entropy, target_kl=kl)
        made.apply(ControllerGradients(float(gradient.tau.mean()), float(gradient.beta.mean())))
    assert made.values.tau == pytest.approx(aim["tau"], rel=0.02)
    assert made.values.beta == pytest.approx(aim["beta"], rel=0.02)

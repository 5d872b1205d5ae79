"""The meta-gradient through a real training step, against finite differences of that step; in double precision.

Transformers normalises in single precision inside, so that the outer objective carries noise of about 1e-8: steps of a
hundredth in tau and beta leave errors of about a thousandth.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.identical import assert_identical
from support.laboratory import Laboratory
from support.runs import configured
from torch import Tensor

from maxent_grpo.objective.advantages import leave_one_out_advantages
from maxent_grpo.training.experience import Experience
from maxent_grpo.training.master_weights import trained_parameters
from maxent_grpo.training.meta.first_order import FirstOrderObjective
from maxent_grpo.training.meta.held_out import HeldOutBatch, held_out_objective
from maxent_grpo.training.step import train_step

TAU, BETA = 0.6, 0.4
DUE, NOT_DUE = 10, 11
BASE = (
    "scoring=maxent_listwise",
    f"scoring.weighting.tau={TAU}",
    f"scoring.weighting.beta={BETA}",
    "model.dtype=float64",
    "evaluation.enabled=false",
    "controller=meta",
    "controller.mode=first_order",
    "controller.adapt_beta=true",
    "controller.min_groups=1",
    "controller.num_prompts=6",
)
PLAIN = ("optimization.max_grad_norm=0", "optimization.adam_epsilon=1e-3", "optimization.learning_rate=0.02")
"""AdamW without clipping."""
CLIPPED = ("optimization.max_grad_norm=0.05", *PLAIN[1:], "optimization.weight_decay=0.1")
"""AdamW whose gradient is scaled down."""
DESCENT = (
    "optimization.max_grad_norm=0",
    "optimization.adam_beta1=0",
    "optimization.adam_epsilon=1e5",
    "optimization.learning_rate=2e4",
)
"""Gradient descent at rate 0.2: beside such an epsilon the second moment is nothing."""


class Bench:
    """A laboratory some steps into training, from where the same step can be taken with any tau and beta."""

    def __init__(self, lab: Laboratory) -> None:
        self.lab = lab
        self.experience: Experience = lab.rollout()
        for _ in range(2):
            lab.step(self.experience)
        handles = lab.ctx.optimization.handles
        self._start = deepcopy([lab.model.state_dict(), handles.base_optimizer.state_dict()])

    def take(self, *, tau: float = TAU, beta: float = BETA, step: int = NOT_DUE) -> dict[str, float]:
        """One step from the start; the controller's metrics of it."""
        lab = self.lab
        weights, moments = deepcopy(self._start)
        lab.model.load_state_dict(weights)
        lab.ctx.optimization.handles.base_optimizer.load_state_dict(moments)
        controller = lab.parts.controller
        controller.load_state_dict({**controller.state_dict(), "tau": tau, "beta": beta})
        groups = self.experience.portions[0]
        report = train_step(lab.ctx, lab.resources, self.experience, groups, controller, lab.parts.clock, step=step)
        assert not report.update.skipped
        return report.controller_metrics

    @property
    def objective(self) -> FirstOrderObjective:
        objective = self.lab.ctx.controller_objective
        assert isinstance(objective, FirstOrderObjective)
        return objective

    def held_out(self) -> HeldOutBatch:
        """What the policy as it is answers at the due step."""
        rows = {group[0].row_id for group in self.experience.batch.records}
        return self.objective._held_out.sample(self.lab.ctx, DUE, rows)

    def outer(self, batch: HeldOutBatch) -> float:
        """M at the parameters as they are, on a fixed batch."""
        lab = self.lab
        with torch.no_grad():
            pieces = self.objective._scorer.plan(batch.tokens)
            return sum(float(held_out_objective(self.objective._scorer, lab.model, batch, piece)) for piece in pieces)

    @property
    def parameters(self) -> list[Tensor]:
        return trained_parameters(self.lab.ctx.optimization.handles.base_optimizer)


def slope(value: Callable[[float], float], size: float = 0.01) -> float:
    """Central difference at 0."""
    return (value(size) - value(-size)) / (2 * size)


def bench(tmp_path: Path, *extra: str) -> Bench:
    return Bench(Laboratory(configured(tmp_path / "run", *BASE, *extra)))


@pytest.mark.parametrize(
    ("optimizer", "jacobian"),
    [(PLAIN, "exact"), (CLIPPED, "exact"), (DESCENT, "frozen")],
    ids=["AdamW", "AdamW, clipped", "gradient descent"],
)
def test_the_meta_gradient_is_the_slope_of_the_outer_objective_through_the_real_step(
    tmp_path: Path, optimizer: tuple[str, ...], jacobian: str
) -> None:
    made = bench(tmp_path, *optimizer, f"controller.optimizer_jacobian={jacobian}", "scoring.batching.score_slice=6")
    analytic = made.take(step=DUE)
    batch = made.held_out()
    assert float(batch.advantages.abs().sum()) > 0.5

    def outer(tau: float, beta: float) -> float:
        made.take(tau=tau, beta=beta)
        return made.outer(batch)

    numerical = {
        "tau": slope(lambda h: outer(TAU + h, BETA)),
        "beta": slope(lambda h: outer(TAU, BETA + h)),
    }
    for name, value in numerical.items():
        assert abs(value) > 1e-4, name
        assert analytic[f"controller/{name}_gradient"] == pytest.approx(value, rel=5e-3), name


def test_a_frozen_preconditioner_is_that_of_the_step_taken(tmp_path: Path) -> None:
    """theta' moved by -a P (change of the gradient), with P of the step at tau, has the frozen meta-gradient as slope."""
    made = bench(tmp_path, *PLAIN, "controller.optimizer_jacobian=frozen")
    analytic = made.take(step=DUE)
    batch, parameters = made.held_out(), made.parameters
    after = [parameter.detach().clone() for parameter in parameters]
    optimizer: Any = made.lab.ctx.optimization.handles.base_optimizer
    preconditioner = []
    for parameter in parameters:
        state = optimizer.state[parameter]
        count = float(state["step"])
        root = (state["exp_avg_sq"] / (1 - 0.95**count)).sqrt()
        preconditioner.append(0.1 / (1 - 0.9**count) / (root + 1e-3))
    gradient = {0.0: list(made.lab._gradient.values())}

    def outer(h: float) -> float:
        made.take(tau=TAU + h)
        gradient[h] = list(made.lab._gradient.values())
        with torch.no_grad():
            for parameter, start, scale, here, there in zip(
                parameters, after, preconditioner, gradient[0.0], gradient[h], strict=True
            ):
                parameter.copy_(start - 0.02 * scale * (there - here))
        return made.outer(batch)

    assert analytic["controller/tau_gradient"] == pytest.approx(slope(outer), rel=5e-3)


def test_a_meta_gradient_leaves_everything_but_the_coefficients_alone(tmp_path: Path) -> None:
    made = bench(tmp_path)
    handles = made.lab.ctx.optimization.handles
    torch.manual_seed(3)

    def after(step: int) -> list[Any]:
        torch.manual_seed(3)
        made.take(step=step)
        assert all(parameter.grad is None for parameter in made.parameters)
        return deepcopy([made.lab.model.state_dict(), handles.base_optimizer.state_dict(), torch.get_rng_state()])

    assert_identical(after(DUE), after(NOT_DUE))
    stats = made.lab.ctx.generation.generation_stats
    assert not any(stats.values())


def test_held_out_rows_are_not_of_the_step_and_depend_on_seed_and_step_alone(tmp_path: Path) -> None:
    made = bench(tmp_path)
    rollouts = made.objective._held_out
    trained = {group[0].row_id for group in made.experience.batch.records}
    chosen = {step: [row["row_id"] for row in rollouts.choose(step, trained)] for step in (10, 20)}
    assert [len(set(rows)) for rows in chosen.values()] == [6, 6]
    assert not trained & {*chosen[10], *chosen[20]}
    assert chosen[10] != chosen[20]
    assert [row["row_id"] for row in rollouts.choose(10, trained)] == chosen[10]
    # a row that is added or left out changes no other row's number
    assert [row["row_id"] for row in rollouts.choose(10, {*trained, chosen[10][0]})][:5] == chosen[10][1:]
    first, again = made.held_out(), made.held_out()
    assert first.tokens.completion_ids.equal(again.tokens.completion_ids)
    assert first.mean_reward == again.mean_reward


def test_the_held_out_advantage_compares_a_completion_with_the_others() -> None:
    utilities = torch.tensor([[1.0, 0.0, float("nan"), 0.5], [2.0, float("nan"), float("nan"), float("nan")]]).double()
    valid = ~utilities.isnan()
    expected = torch.tensor([[1.0 - 0.25, 0.0 - 0.75, 0.0, 0.0], [0.0] * 4]).double()
    torch.testing.assert_close(leave_one_out_advantages(utilities, valid), expected, rtol=0, atol=1e-15)


def test_equal_held_out_rewards_teach_nothing_and_are_counted(tmp_path: Path) -> None:
    made = bench(tmp_path)
    metrics = made.take(step=DUE)
    assert metrics["controller/skipped"] == 0.0
    terms = made.lab.ctx.reward.reward_weights
    made.lab.ctx.reward.reward_weights = [0.0 for _ in terms]
    metrics = made.take(step=DUE)
    assert (metrics["controller/skipped"], metrics["controller/outer_reward"]) == (1.0, 0.0)
    assert "controller/tau_gradient" not in metrics

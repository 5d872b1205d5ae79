"""How the parameters after an AdamW update answer to the gradient that it was given.

With clipped gradient c = f g, m = beta1 m_0 + (1 - beta1) c, v = beta2 v_0 + (1 - beta2) c^2 and bias corrections b1, b2,
theta' = (1 - a decay) theta - a (m / b1) / (sqrt(v / b2) + eps). Held constant in v and f, dtheta'/dg = -a P with

    P = f (1 - beta1) / b1 / (sqrt(v / b2) + eps),

elementwise. The exact derivative adds that of v in c and that of f = max_norm / |g|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from maxent_grpo.training.master_weights import trained_parameters
from maxent_grpo.training.types.choices import OptimizerJacobian

NORM_EPSILON = 1e-6
"""What torch's gradient clipping adds to the norm."""


@dataclass(frozen=True)
class AppliedGradient:
    """The accumulated gradient of a step before clipping, and the learning rate it was applied with."""

    gradients: list[Tensor]
    """One for each trained parameter; zeros where it has none."""
    learning_rates: list[float]
    max_norm: float
    """Clip norm; infinite without clipping."""

    @property
    def norm(self) -> float:
        """Global norm before clipping."""
        return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in self.gradients))

    @property
    def clip_factor(self) -> float:
        """What the gradient was multiplied by."""
        return min(1.0, self.max_norm / (self.norm + NORM_EPSILON))


def applied_gradient(optimizer: torch.optim.Optimizer, max_norm: float) -> AppliedGradient:
    """A copy of the gradient that the optimiser is about to be given."""
    parameters = trained_parameters(optimizer)
    rates = [float(group["lr"]) for group in optimizer.param_groups for _ in group["params"]]
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
        for parameter in parameters
    ]
    return AppliedGradient(gradients, rates, max_norm if max_norm > 0 else math.inf)


def through_update(
    vectors: list[Tensor], optimizer: torch.optim.AdamW, applied: AppliedGradient, jacobian: OptimizerJacobian
) -> list[Tensor]:
    """-(dtheta'/dg)^T v for each parameter's part of v, in double precision; the optimiser has just taken the step."""
    exact = jacobian is OptimizerJacobian.exact
    settings = [group for group in optimizer.param_groups for _ in group["params"]]
    factor = applied.clip_factor
    back = [
        vector.double() * rate * _adam_slope(optimizer.state[parameter], group, factor * gradient.double(), exact)
        for vector, rate, parameter, group, gradient in zip(
            vectors, applied.learning_rates, trained_parameters(optimizer), settings, applied.gradients, strict=True
        )
    ]
    if exact and factor < 1.0:
        # the factor of a clipped gradient falls as the gradient grows along itself
        norm = applied.norm
        along = sum(
            float((part * gradient.double()).sum()) for part, gradient in zip(back, applied.gradients, strict=True)
        )
        along /= norm * (norm + NORM_EPSILON)
        back = [part - along * gradient.double() for part, gradient in zip(back, applied.gradients, strict=True)]
    return [factor * part for part in back]


def _adam_slope(state: dict[str, Tensor], group: dict[str, object], clipped: Tensor, exact: bool) -> Tensor | float:
    """d[m_hat / (sqrt(v_hat) + eps)]/dc elementwise, from the moments after the step; 0 for a parameter that was not stepped."""
    if not state:
        return 0.0
    beta1, beta2 = _pair(group["betas"])
    epsilon, count = _number(group["eps"]), float(state["step"])
    first, second = 1 - beta1**count, 1 - beta2**count
    root = (state["exp_avg_sq"].double() / second).sqrt()
    denominator = root + epsilon
    slope = (1 - beta1) / first / denominator
    if exact:
        moment = state["exp_avg"].double() / first
        # where the root is 0 every gradient so far was 0, and so is this one's share
        pull = (
            moment
            * (1 - beta2)
            / second
            * clipped
            / (denominator.square() * root.clamp(min=torch.finfo(root.dtype).tiny))
        )
        slope = slope - torch.where(root > 0, pull, torch.zeros_like(pull))
    return slope


def _pair(value: object) -> tuple[float, float]:
    assert isinstance(value, tuple)
    return _number(value[0]), _number(value[1])


def _number(value: object) -> float:
    assert isinstance(value, float), "setup builds the optimiser with plain numbers"
    return value

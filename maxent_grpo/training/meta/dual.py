"""`controller.mode=analytic`: the gradient of the dual of a target entropy and a target divergence; no model is run."""

from __future__ import annotations

import torch

from maxent_grpo.distributed import global_sum
from maxent_grpo.objective.meta import TargetGroups, dual_gradient, relative_entropy_target
from maxent_grpo.training.meta.inner_step import InnerStep
from maxent_grpo.training.types.runtime import ControllerGradients, TrainingLoopContext


class DualObjective:
    """Mean over the step's informative groups of g(tau, beta) = kappa log Z - tau H* + beta K*.

    dg/dtau = mean(H(w) - H*) and dg/dbeta = mean(K* - KL(w || pi_ref)): tau grows while the weights are sharper than asked
    for, beta while they are further from the reference. Groups whose utilities are equal have H = log n for every tau and
    are left out. Without a reference the gradient in beta is 0.
    """

    def __init__(self, *, target_fraction: float, target_kl: float) -> None:
        self._target_fraction, self._target_kl = target_fraction, target_kl
        self._seen: InnerStep | None = None
        self._notes: dict[str, float] = {}

    def observe(self, context: TrainingLoopContext, inner: InnerStep) -> None:
        """Remember the step's groups and coefficients."""
        self._seen = inner

    def compute(self, context: TrainingLoopContext) -> ControllerGradients | None:
        """The gradient at the observed step, over all processes; None without an informative group."""
        inner, self._seen, self._notes = self._seen, None, {}
        if inner is None:
            return None
        log_q, reference, valid = inner.informative.log_q, inner.informative.log_reference, inner.informative.valid
        groups = TargetGroups(log_q, torch.zeros_like(log_q) if reference is None else reference, valid)
        target = relative_entropy_target(groups, self._target_fraction)
        gradient = dual_gradient(
            groups, tau=inner.values.tau, beta=inner.values.beta, target_entropy=target, target_kl=self._target_kl
        )
        beta = torch.zeros_like(gradient.beta) if reference is None else gradient.beta
        sums = [float(len(log_q)), float(gradient.tau.sum()), float(beta.sum()), float(target.sum())]
        count, tau_sum, beta_sum, target_sum = global_sum(context.runtime.accelerator, sums)
        if count == 0:
            return None
        self._notes = {
            "controller/measured": (tau_sum + target_sum) / count,
            "controller/target": target_sum / count,
        }
        return ControllerGradients(tau_sum / count, beta_sum / count)

    def discard(self) -> None:
        """Forget the step."""
        self._seen = None

    def notes(self) -> dict[str, float]:
        """Mean entropy of the weights and its target [nats]."""
        return self._notes

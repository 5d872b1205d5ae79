"""`controller=meta`: tau and beta follow the gradient of an outer objective."""

from dataclasses import dataclass

from maxent_grpo.config.controller import BETA, TAU, TauControllerConfig
from maxent_grpo.training.types.choices import MetaMode, MetaOptimizer, OptimizerJacobian


@dataclass(slots=True)
class MetaControllerConfig(TauControllerConfig):
    """tau, and beta if asked for, descend the convex dual of their targets or the one-step meta-gradient of the held-out reward."""

    mode: MetaMode = MetaMode.analytic
    """Outer objective: `analytic` is the dual g = (tau + beta) log Z - tau H* + beta K*, whose gradient is how far H(w) and KL(w || pi_ref) miss their targets; `first_order` is minus the expected reward after the update, differentiated through the update."""
    every_n_steps: int = 10
    """Optimiser steps between two changes of tau and beta; first_order needs at least 10 [steps]."""
    optimizer: MetaOptimizer = MetaOptimizer.adam
    """What turns gradients in log tau and log beta into changes: `adam` (whatever the gradient's scale) or `sgd`."""
    learning_rate: float = 0.05
    """Its learning rate: with adam about the change of log tau in one update."""
    max_gradient: float = 1.0
    """The gradient in (log tau, log beta) is scaled down to this norm."""
    max_log_change: float = 0.1
    """Largest change of log tau and of log beta in one update."""
    min_groups: int = 4
    """Fewest informative groups of a step that are learnt from; with fewer the update is left out and counted [groups]."""
    adapt_beta: bool = False
    """Move `scoring.weighting.beta` too; it moves in its logarithm, so it has to start above 0."""
    beta_min: float = 1e-4
    """Smallest beta."""
    beta_max: float = 10.0
    """Largest beta."""
    target_fraction: float = 0.5
    """analytic: target f of the weight entropy of each informative group, H* = log c + f (log n - log c) with n completions that take part, c of them best."""
    target_kl: float = 0.05
    """analytic: target K* of KL(w || pi_ref), mean over informative groups, that beta is moved to [nats]."""
    num_prompts: int = 16
    """first_order: training prompts outside the step that the updated policy answers, generation.num_generations times each, to estimate the gradient of its reward [prompts]."""
    optimizer_jacobian: OptimizerJacobian = OptimizerJacobian.exact
    """first_order: `frozen` takes Adam's second moment and the clip factor as constants, `exact` differentiates through them as well."""

    def adapted(self) -> tuple[str, ...]:
        """tau, and beta where it is adapted."""
        return (TAU, BETA) if self.adapt_beta else (TAU,)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """The bounds of what is adapted."""
        every = {TAU: (self.tau_min, self.tau_max), BETA: (self.beta_min, self.beta_max)}
        return {path: every[path] for path in self.adapted()}

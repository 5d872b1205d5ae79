"""`controller.mode=first_order`: the gradient of the reward after the update, taken through the update (arXiv 1805.09801).

theta' = theta - a P grad L(theta; tau, beta). The listwise term of L is scale/N_grp sum CE(w, p) with dCE/ds_i = p_i - w_i, so
that with phi for tau or beta

    dM/dphi = a <sum_x sum_i (dw_i/dphi) scale/N_grp grad s_i(theta), P grad M(theta')>.

w enters linearly, so no second derivative is needed. The left vector is one backward pass at theta, taken before the update;
the right one is a policy gradient on held-out rollouts of theta'. Neither touches parameters, gradients, moments or random states.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from maxent_grpo.distributed import gather_all, global_sum
from maxent_grpo.objective.logprobs import sequence_score, sequence_sum
from maxent_grpo.objective.meta import TargetGroups, weight_derivatives
from maxent_grpo.training.forward import evaluation_mode
from maxent_grpo.training.master_weights import live_parameters
from maxent_grpo.training.meta.held_out import HeldOutBatch, HeldOutRollouts, held_out_objective
from maxent_grpo.training.meta.inner_step import InnerStep
from maxent_grpo.training.meta.optimizer_jacobian import (
    AppliedGradient,
    applied_gradient,
    through_update,
)
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.types.choices import OptimizerJacobian
from maxent_grpo.training.types.runtime import ControllerGradients, TrainingLoopContext


@dataclass(frozen=True)
class ObservedStep:
    """What a meta-gradient needs of the step before its update."""

    step: int
    row_ids: set[str]
    """Of the step's groups, of all processes."""
    applied: AppliedGradient
    directions: list[list[Tensor]]
    """For tau, and for beta where it is adapted: sum_i (dw_i/dphi) scale/N_grp grad s_i(theta), one tensor per trained parameter."""


class FirstOrderObjective:
    """M(theta') = minus the expected reward of the updated policy on rows outside the step."""

    def __init__(
        self,
        held_out: HeldOutRollouts,
        scorer: TokenScorer,
        *,
        listwise_scale: float,
        adapt_beta: bool,
        jacobian: OptimizerJacobian,
    ) -> None:
        """Keep what differentiating needs.

        Args:
            held_out: samples and grades rows outside the step.
            scorer: log-probabilities as training takes them.
            listwise_scale: factor of (1/N_grp) sum CE in the loss.
            adapt_beta: whether the gradient in beta is wanted; it is 0 otherwise.
            jacobian: what of the update follows its gradient.
        """
        self._held_out, self._scorer = held_out, scorer
        self._scale, self._adapt_beta, self._jacobian = listwise_scale, adapt_beta, jacobian
        self._seen: ObservedStep | None = None
        self._notes: dict[str, float] = {}

    def observe(self, context: TrainingLoopContext, inner: InnerStep) -> None:
        """Copy the accumulated gradient and differentiate the weighted scores at theta."""
        optimization = context.optimization
        optimizer = optimization.handles.base_optimizer
        applied = applied_gradient(optimizer, optimization.schedule.max_grad_norm)
        own = [group[0].row_id for group in inner.experience.batch.records[inner.groups.slice]]
        row_ids = {row_id for ids in gather_all(context.runtime.accelerator, own) for row_id in ids}
        with _own_randomness(context):
            directions = self._directions(context, inner, live_parameters(optimizer))
        self._seen = ObservedStep(inner.step, row_ids, applied, directions)

    def compute(self, context: TrainingLoopContext) -> ControllerGradients | None:
        """dM/dtau and dM/dbeta through the update just taken.

        None when the update was left out because its gradient was zero, or when no held-out prompt has answers of different
        reward, so that nothing is known about the reward's gradient.
        """
        seen, self._seen, self._notes = self._seen, None, {}
        if seen is None:
            return None
        optimizer = context.optimization.handles.base_optimizer
        assert isinstance(optimizer, torch.optim.AdamW), "the gates refuse any other optimiser"
        if seen.applied.norm == 0.0 and context.optimization.skip_zero_signal:
            return None
        with _own_randomness(context):
            batch = self._held_out.sample(context, seen.step, seen.row_ids)
            self._notes = {"controller/outer_reward": batch.mean_reward} if batch.num_sequences else {}
            informed = global_sum(context.runtime.accelerator, [float(batch.advantages.abs().sum())])[0]
            if informed == 0.0:
                return None
            outer = self.outer_gradient(context, batch)
        back = through_update(outer, optimizer, seen.applied, self._jacobian)
        local = [_inner_product(direction, back) for direction in seen.directions]
        tau, *beta = global_sum(context.runtime.accelerator, local)
        return ControllerGradients(tau, beta[0] if beta else 0.0)

    def discard(self) -> None:
        """Free the copies of the step's gradient."""
        self._seen = None

    def notes(self) -> dict[str, float]:
        """Mean reward of the held-out rollouts."""
        return self._notes

    def outer_gradient(self, context: TrainingLoopContext, batch: HeldOutBatch) -> list[Tensor]:
        """grad M(theta) at the parameters as they are, over all processes, one tensor per trained parameter."""
        accelerator, model = context.runtime.accelerator, context.runtime.model
        parameters = live_parameters(context.optimization.handles.base_optimizer)
        total = _zeros(parameters)
        with evaluation_mode(model):
            for piece in self._scorer.plan(batch.tokens):
                _add_gradient(total, held_out_objective(self._scorer, model, batch, piece), parameters)
        return (
            total if accelerator.num_processes == 1 else cast(list[Tensor], accelerator.reduce(total, reduction="sum"))
        )

    def _directions(
        self, context: TrainingLoopContext, inner: InnerStep, parameters: list[Tensor]
    ) -> list[list[Tensor]]:
        model = context.runtime.model
        coefficients = _coefficients(inner, self._scale, with_beta=self._adapt_beta)
        totals = [_zeros(parameters) for _ in coefficients]
        experience, scoring = inner.experience, context.scoring
        rows, dtype = experience.rows(inner.groups), next(model.parameters()).dtype
        for piece in self._scorer.plan(experience.tokens, rows):
            chunks = self._scorer.assemble(experience.tokens, piece, dtype)
            logp = self._scorer.score(model, chunks, experience.tokens.completion_ids.shape[1]).logp
            mask = experience.mask[piece.slice].to(logp.device)
            scores = sequence_score(
                sequence_sum(logp, mask),
                mask.sum(dim=-1),
                mode=scoring.weighting.score_mode,
                score_length=scoring.weighting.score_length,
            )
            here = slice(piece.first - rows.first, piece.last - rows.first)
            for number, (total, coefficient) in enumerate(zip(totals, coefficients, strict=True), start=1):
                weighted = (coefficient[here].to(scores) * scores).sum()
                _add_gradient(total, weighted, parameters, keep_graph=number < len(totals))
        return totals


def _coefficients(inner: InnerStep, scale: float, *, with_beta: bool) -> list[Tensor]:
    """scale/N_grp dw_i/dphi of every row of the step [N], for tau and, where it is adapted, beta."""
    targets, values = inner.targets, inner.values
    groups = TargetGroups(targets.log_q, targets.log_reference, targets.listwise_valid)
    derivative = weight_derivatives(groups, tau=values.tau, beta=values.beta)
    wanted = [derivative.tau, derivative.beta] if with_beta else [derivative.tau]
    return [scale / max(inner.counts.groups, 1.0) * part.flatten() for part in wanted]


def _zeros(parameters: list[Tensor]) -> list[Tensor]:
    """Sums of gradients have at least 32 bits."""
    wide = [torch.promote_types(parameter.dtype, torch.float32) for parameter in parameters]
    return [torch.zeros_like(parameter, dtype=dtype) for parameter, dtype in zip(parameters, wide, strict=True)]


def _add_gradient(total: list[Tensor], value: Tensor, parameters: list[Tensor], *, keep_graph: bool = False) -> None:
    """Add the gradient of ``value``; the parameters' own ``grad`` is left alone."""
    parts = torch.autograd.grad(value, parameters, retain_graph=keep_graph, allow_unused=True)
    for held, part in zip(total, parts, strict=True):
        if part is not None:
            held += part


def _inner_product(left: list[Tensor], right: list[Tensor]) -> float:
    return sum(float((a.double() * b).sum()) for a, b in zip(left, right, strict=True))


@contextmanager
def _own_randomness(context: TrainingLoopContext) -> Iterator[None]:
    """Leave torch's generators as they are, whatever a model in training mode draws."""
    device = context.runtime.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield

"""One optimiser step at a time, on a run put together as always: repeatable, and with its gradient kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from support.runs import inside_run
from torch import Tensor

from maxent_grpo.config.root import RootConfig
from maxent_grpo.training.experience import Experience, ready_to_train, sample_rollout
from maxent_grpo.training.loop_parts import LoopParts
from maxent_grpo.training.metrics import drain_generation_stats, generation_metrics, step_metrics
from maxent_grpo.training.step import StepReport, train_step
from maxent_grpo.training.step_part import gather_parts, step_part
from maxent_grpo.training.types.runtime import StepBatchInfo, StepResources, TrainingLoopContext
from maxent_grpo.training.types.samplers import VersionedSampler


@dataclass
class Outcome:
    """What a step did to the model."""

    report: StepReport
    metrics: dict[str, float]
    gradient: dict[str, Tensor]
    """As the optimiser saw it; empty when it took no step."""
    weights: dict[str, Tensor]
    """After the step."""

    @property
    def loss(self) -> float:
        return sum(part.total_loss_scalar for part in self.report.losses)


class Laboratory:
    """A run's parts, and the state that every step starts from: fresh optimiser, policy a little off the reference."""

    def __init__(self, config: RootConfig, *, drift: float = 0.05) -> None:
        self.ctx: TrainingLoopContext
        self.resources: StepResources
        self.parts: LoopParts
        self.ctx, self.resources, self.parts = inside_run(config, lambda *parts: parts)
        self.model: Any = self.ctx.runtime.model
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self.model.parameters():
                noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
                parameter += (drift * noise).to(parameter.dtype)
        handles = self.ctx.optimization.handles
        assert handles.lr_scheduler is not None
        self._start = deepcopy(
            [self.model.state_dict(), handles.base_optimizer.state_dict(), handles.lr_scheduler.state_dict()]
        )
        self._gradient: dict[str, Tensor] = {}
        handles.base_optimizer.register_step_pre_hook(self._keep_gradient)

    def reset(self) -> None:
        """Model, optimiser and learning rate as they were at first."""
        weights, moments, schedule = deepcopy(self._start)
        self.model.load_state_dict(weights)
        handles = self.ctx.optimization.handles
        handles.base_optimizer.load_state_dict(moments)
        assert handles.lr_scheduler is not None
        handles.lr_scheduler.load_state_dict(schedule)
        self.model.zero_grad(set_to_none=True)

    def rollout(self, index: int = 0) -> Experience:
        """The first prompts, sampled; the same index draws the same completions."""
        assert isinstance(self.resources.generator, VersionedSampler)
        self.resources.generator.begin_rollout(index)
        info = StepBatchInfo(epoch=0, step_in_epoch=0, batch=next(iter(self.ctx.runtime.train_loader)))
        sampled = sample_rollout(self.ctx, self.resources, info, self.parts.rows, self.parts.clock, 0)
        return ready_to_train(self.ctx, self.resources, sampled, self.parts.clock, 0)

    def step(self, experience: Experience, portion: int = 0) -> Outcome:
        """One optimiser step on a portion of the experience; the weights stay changed."""
        self._gradient = {}
        scorers = [scorer for scorer in (self.resources.scorer, self.resources.reference_scorer) if scorer]
        for scorer in scorers:
            scorer.counters.drain()
        report = train_step(
            self.ctx,
            self.resources,
            experience,
            experience.portions[portion],
            self.parts.controller,
            self.parts.clock,
            step=portion + 1,
        )
        counted = [scorer.counters.drain() for scorer in scorers]
        part = step_part(
            report, counted, self.resources.sampled.drain(), drain_generation_stats(self.ctx.generation), []
        )
        part = gather_parts(self.ctx.runtime.accelerator, part, experience.places[report.groups.slice])
        metrics = step_metrics(report, part, self.ctx.scoring.weighting) | generation_metrics(part.generation)
        return Outcome(report, metrics, self._gradient, self.weights())

    def weights(self) -> dict[str, Tensor]:
        """A copy of the parameters."""
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def _keep_gradient(self, *_: Any) -> None:
        self._gradient = {
            name: parameter.grad.clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }


Build = Callable[..., Laboratory]
"""Overrides to a laboratory."""


def largest_difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """Over all entries of equally named tensors."""
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)

"""An optimiser step as an outer objective sees it, and where the step hands it over.

A meta-gradient belongs to one update theta -> theta'. What it needs of theta is taken before the update (``observe_step``), the
rest after it (``apply_meta_gradients``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from maxent_grpo.errors import NonFiniteError, NonFiniteUpdateError
from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.training.clock import PhaseClock
from maxent_grpo.training.control.base import InformativeGroups
from maxent_grpo.training.control.meta import MetaManager
from maxent_grpo.training.experience import Experience
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.targets import SequenceTargets
from maxent_grpo.training.types.runtime import TrainingLoopContext
from maxent_grpo.training.types.weighting import ControllerValues


@dataclass(frozen=True)
class InnerStep:
    """The step whose update the coefficients took part in, with its gradient accumulated and not yet applied."""

    step: int
    experience: Experience
    groups: RowRange
    targets: SequenceTargets
    """Of the step's groups."""
    informative: InformativeGroups
    """Those of this process that tau acts on."""
    values: ControllerValues
    """The coefficients that made the weights."""
    counts: StepCounts


@runtime_checkable
class StepObserver(Protocol):
    """An objective that has to see the step before its update; ``compute`` then speaks about that step."""

    def observe(self, context: TrainingLoopContext, inner: InnerStep) -> None:
        """Take what is needed of the parameters, the gradient and the optimiser before the update."""
        ...

    def discard(self) -> None:
        """Let go of the observed step: nothing will be computed for it."""
        ...

    def notes(self) -> dict[str, float]:
        """What was measured on the way, by names of the table of metrics."""
        ...


def observe_step(ctx: TrainingLoopContext, inner: InnerStep, clock: PhaseClock) -> None:
    """Let the outer objective see a step after which an update of the coefficients is due."""
    manager, objective = ctx.controller_meta_manager, ctx.controller_objective
    if isinstance(manager, MetaManager) and manager.due(inner.step) and isinstance(objective, StepObserver):
        with clock.phase("meta"):
            objective.observe(ctx, inner)


def discard_step(ctx: TrainingLoopContext) -> None:
    """Let go of a step that was seen and whose update is left out."""
    if isinstance(ctx.controller_objective, StepObserver):
        ctx.controller_objective.discard()


def apply_meta_gradients(ctx: TrainingLoopContext, step: int, clock: PhaseClock) -> None:
    """After the update and the controller's measurements: differentiate the outer objective and move the coefficients.

    Raises:
        NonFiniteUpdateError: held-out completions cannot be sampled or scored with the weights as they are now.
    """
    manager, objective = ctx.controller_meta_manager, ctx.controller_objective
    if objective is None or not isinstance(manager, MetaManager) or not manager.due(step):
        return
    observes = isinstance(objective, StepObserver)
    with clock.phase("meta"):
        if manager.can_learn:
            try:
                gradients = objective.compute(ctx)
            except NonFiniteError as error:
                raise NonFiniteUpdateError(
                    f"step {step} was taken, and controller=meta finds its weights broken: {error} Nothing is saved of it; go on from an "
                    "earlier checkpoint, with a lower optimization.learning_rate."
                ) from error
            manager.apply(gradients, objective.notes() if observes else None)
            return
        if observes:
            objective.discard()
        manager.apply(None)

"""Where training gets its rollouts: sampled when they are needed, or with ``generation.async_steps=1`` one rollout ahead.

Ahead, rollout k + 1 is sampled with the weights that rollout k begins to train with, before or while it does:

    sample 0 and 1 with version 0 | train 0 | sample 2 with version S | train 1 | sample 3 with version 2 S | train 2 ...

where S are the optimiser steps of a rollout. A sampler that has weights of its own is sent its requests, and answers while
training goes on; the trainer's own model samples at once, in the same order and with the same weights. Sending changes nothing
but the sampler: rows, counters and carried groups move when the answers are taken in, so that an error leaves nothing half done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from maxent_grpo.errors import GenerationError
from maxent_grpo.training.carried_groups import CarriedGroups
from maxent_grpo.training.clock import PhaseClock
from maxent_grpo.training.dynamic_sampling import first_draw, gather_informative
from maxent_grpo.training.experience import Experience, Rows, prompts_per_rollout, ready_to_train, sample_rollout
from maxent_grpo.training.row_stream import RowStream
from maxent_grpo.training.sampled_rollout import RolloutAhead, SampledRollout
from maxent_grpo.training.types.runtime import StepResources, TrainingLoopContext
from maxent_grpo.training.types.samplers import SendingSampler, VersionedSampler


@dataclass
class RolloutSource:
    """Gives out the rollouts of a run in their order."""

    ctx: TrainingLoopContext
    resources: StepResources
    stream: RowStream
    rows: Rows
    clock: PhaseClock
    carried: CarriedGroups | None
    """Groups that dynamic sampling kept for the next rollout; None where every group is trained."""
    ahead: RolloutAhead | None
    """The rollout after the one that trains; None where each is sampled when it is needed."""

    def next(self, index: int, step: int) -> Experience:
        """Rollout ``index``, to be trained from the current weights on, those of optimiser step ``step``.

        Ahead, the one after it is begun before this one is scored, unless no step is left to train it.

        Raises:
            GenerationError: a sampler gave up; rows are as if nothing had been drawn for what it did not deliver.
        """
        with self.ctx.runtime.whole():
            return self._next(index, step)

    def _next(self, index: int, step: int) -> Experience:
        if self.ahead is None:
            self._begin(index, step)
            return self._ready(self._sample(step), step)
        self.settle(step)
        if self.ahead.rollout is None:  # the run's first, or the first after a sampler gave up
            self._begin(index, step)
            self.ahead.rollout = self._sample(step)
        current, following = self.ahead.rollout, None
        schedule = self.ctx.optimization.schedule
        num_steps = schedule.num_iterations * len(current.portions)
        if step + num_steps < schedule.total_training_steps:
            self._begin(index + 1, step, ahead=num_steps)
            generator = self.resources.generator
            if isinstance(generator, SendingSampler):
                self._send(generator)
                self.ahead.sent_at = step
            else:
                following = self._sample(step)
        self.ahead.rollout = following
        return self._ready(current, step)

    def settle(self, step: int) -> None:
        """Take in what is in flight, waiting for it: before the sampler gets other weights, and before a checkpoint.

        Raises:
            GenerationError: it did not arrive, and is not in flight any more.
        """
        if self.ahead is None or self.ahead.sent_at is None:
            return
        version, self.ahead.sent_at = self.ahead.sent_at, None
        if isinstance(self.resources.generator, VersionedSampler):
            self.resources.generator.policy_version = step  # of what the trainer's own model may have to fill up
        with self.ctx.runtime.whole():
            self.ahead.rollout = self._sample(version)

    def _begin(self, index: int, step: int, *, ahead: int = 0) -> None:
        generator = self.resources.generator
        if isinstance(generator, VersionedSampler):
            generator.policy_version = step
            if ahead:
                generator.begin_rollout(index, ahead=ahead)
            else:
                generator.begin_rollout(index)

    def _send(self, generator: SendingSampler) -> None:
        """Ask for the completions of the rows that come next, which are drawn once they have arrived."""
        if self.carried is None:
            rows = self.stream.peek(prompts_per_rollout(self.ctx.optimization.schedule)).batch
        else:
            rows = self.stream.peek(first_draw(self.ctx, self.carried), across_epochs=True).batch
        with self.clock.phase("rollout"):
            generator.send([row["prompt"] for row in rows], self.ctx.generation.num_generations)

    def _sample(self, version: int) -> SampledRollout:
        """Sample and grade the next rows, a rollout's worth or until a rollout's groups have a signal.

        What the sampler counts on the way is kept for the line of the rollout's own first step.
        """
        position, stats = self.stream.position.state_dict(), self.ctx.generation.generation_stats
        carried = [] if self.carried is None else list(self.carried.groups)
        before = dict(stats)
        try:
            sampled = self._drawn(version)
        except GenerationError:
            self.stream.go_to(position)
            if self.carried is not None:
                self.carried.groups = carried
            raise
        counts = {name: stats[name] - count for name, count in before.items()}
        for name, count in counts.items():
            stats[name] -= count
        return replace(sampled, counts=counts)

    def _drawn(self, version: int) -> SampledRollout:
        if self.carried is not None:
            return gather_informative(
                self.ctx, self.resources, self.stream, self.carried, self.rows, self.clock, version,
                scores_surplus=self.ahead is None,
            )  # fmt: skip
        info = self.stream.draw(prompts_per_rollout(self.ctx.optimization.schedule))
        return sample_rollout(self.ctx, self.resources, info, self.rows, self.clock, version)

    def _ready(self, sampled: SampledRollout, step: int) -> Experience:
        for name, count in sampled.counts.items():
            self.ctx.generation.generation_stats[name] += count
        return ready_to_train(self.ctx, self.resources, sampled, self.clock, step)

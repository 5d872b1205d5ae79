"""The training loop: for each optimiser step, sample when a rollout is used up, update, measure, record, save.

Order within a step: update, controller, counters, evaluation, metrics, checkpoint. A checkpoint at step n therefore holds
everything that step n + 1 needs, and a resumed run is the same run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from maxent_grpo.distributed import from_main
from maxent_grpo.tasks.sampler import EpochSampler
from maxent_grpo.telemetry.progress import resume_command
from maxent_grpo.training.control.state import write_state
from maxent_grpo.training.dynamic_sampling import drawing_metrics
from maxent_grpo.training.evaluation.evaluate import evaluate
from maxent_grpo.training.experience import refresh_reference
from maxent_grpo.training.loop_parts import LoopParts
from maxent_grpo.training.metrics import (
    add_running,
    completion_records,
    drain_generation_stats,
    drain_running,
    generation_metrics,
    machine_metrics,
    step_metrics,
)
from maxent_grpo.training.optim import schedule_line
from maxent_grpo.training.rollout_source import RolloutSource
from maxent_grpo.training.row_stream import RowStream
from maxent_grpo.training.saving import save, save_due, save_once, saved_if_not_finite, saved_if_sampling_fails
from maxent_grpo.training.scoring.reference import sync_due, sync_reference
from maxent_grpo.training.step import StepReport, train_step
from maxent_grpo.training.step_part import StepPart, gather_parts, step_part
from maxent_grpo.training.stopping import SAID, StopCause
from maxent_grpo.training.throughput import StepWork, throughput_metrics
from maxent_grpo.training.types.flops import Work
from maxent_grpo.training.types.runtime import StepResources, TrainingLoopContext, TrainingLoopState
from maxent_grpo.training.types.samplers import SendingSampler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind."""

    run_dir: Path
    global_step: int
    metrics: dict[str, float]
    """The last step's line, empty where this process took none."""
    evaluations: dict[int, dict[str, float]]
    """Evaluation figures by step, of this process's part of the run."""
    stopped: StopCause = StopCause.none
    """Why it ended before its last step, if somebody wanted it to."""


@dataclass(frozen=True)
class _Done:
    """A step that was made and is to be recorded."""

    report: StepReport
    part: StepPart
    is_overlapped: bool

    @property
    def work(self) -> StepWork:
        """What all processes ran for it."""
        return StepWork(
            sampled=self.part.sampled,
            scored=sum((counters.work for counters in self.part.scoring), Work()),
            trained=self.part.trained,
            tokens=self.report.trained_tokens,
            is_overlapped=self.is_overlapped,
        )


def run_training(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts) -> RunResult:
    """Train until the schedule's last step, an early stop, a wish to stop, or an error; evaluates before (step 0) and after."""
    total, state = ctx.optimization.schedule.total_training_steps, parts.state
    evaluations: dict[int, dict[str, float]] = {}
    metrics: dict[str, float] = {}
    stopped = StopCause.none
    parts.stopping.turn()
    ctx.logging.start(total, state.global_step)
    parts.clock.restart()  # what was put together before belongs to no step
    logger.info("%s", schedule_line(ctx.optimization))
    if state.global_step == 0 and _evaluates(ctx, resources):
        evaluations[0] = _evaluate(resources, parts)
        seconds = parts.clock.drain()[0]["evaluation"]
        ctx.logging.write_metrics(0, evaluations[0] | {"time/evaluation_seconds": seconds})
    stream = RowStream(
        ctx.runtime.train_loader,
        cast(EpochSampler, ctx.runtime.train_sampler),
        parts.position,
        ctx.optimization.schedule.prompts_per_step,
    )
    rollouts = RolloutSource(ctx, resources, stream, parts.rows, parts.clock, parts.carried, parts.ahead)
    last = total if parts.until is None else min(parts.until, total)
    while state.global_step < last and not state.stop_training:
        parts.stopping.turn()
        stopped = parts.stopping.decide(ctx.runtime.accelerator)
        if stopped:
            _leave(ctx, parts, rollouts, stopped)
            break
        with parts.profiler.watch(state.global_step + 1):
            report = _take_step(ctx, resources, parts, rollouts)
            with parts.clock.phase("measure"):
                part = _gathered(ctx, resources, parts, report)
                metrics = _measured(ctx, parts, report, part)
            done = _Done(report, part, _is_overlapped(resources, parts))
        is_best = False
        if _evaluation_due(ctx, resources, state, total):
            with saved_if_sampling_fails(ctx, parts, partial(_record, ctx, parts, done, metrics)):
                rollouts.settle(state.global_step)
                evaluations[state.global_step] = _evaluate(resources, parts)
            metrics |= evaluations[state.global_step]
            # by the main process's numbers: a time, for one, is another on each
            is_best, stop = from_main(ctx.runtime.accelerator, parts.saving.best.update(metrics))
            state.stop_training = stop
        _record(ctx, parts, done, metrics)
        if save_due(parts, total, is_best):
            with saved_if_sampling_fails(ctx, parts, is_best=is_best):
                rollouts.settle(state.global_step)
            save(ctx, parts, is_best)
    for sentence in parts.health.summary():
        ctx.logging.write_note(sentence)
    return RunResult(ctx.logging.run_dir, state.global_step, metrics, evaluations, stopped)


def _leave(ctx: TrainingLoopContext, parts: LoopParts, rollouts: RolloutSource, cause: StopCause) -> None:
    """Save the run between two steps and say how it goes on; before the first step there is nothing to save."""
    step = parts.state.global_step
    if step == 0:
        logger.warning("stopped by %s before the first step: nothing is trained yet", SAID[cause])
        return
    with saved_if_sampling_fails(ctx, parts):
        rollouts.settle(step)
    save_once(ctx, parts)
    logger.warning(
        "stopped by %s after step %d, which is saved; continue with %s",
        *(SAID[cause], step, resume_command(ctx.logging.run_dir)),
    )


def _take_step(
    ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts, rollouts: RolloutSource
) -> StepReport:
    state, buffer = parts.state, parts.buffer
    with parts.clock.phase("prepare"):  # the phases inside count for themselves
        if buffer.experience is None:
            with saved_if_sampling_fails(ctx, parts):
                buffer.put(rollouts.next(buffer.num_rollouts, state.global_step))
        assert buffer.experience is not None
        groups = buffer.take()
        with saved_if_not_finite(ctx, parts, rollouts):
            report = train_step(
                ctx, resources, buffer.experience, groups, parts.controller, parts.clock,
                step=state.global_step + 1, skip_nonfinite=parts.guard.skip,
            )  # fmt: skip
            parts.guard.see(report.nonfinite)
    buffer.release_if_done()
    state.global_step += 1
    _follow_policy(ctx, resources, parts)
    return report


def _follow_policy(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts) -> None:
    """Let a moving reference follow the policy, and score what is left of the rollout with it unless stale is allowed."""
    sync, reference = ctx.scoring.reference_sync, ctx.runtime.reference_model
    if reference is None or not sync_due(sync, parts.state.global_step):
        return
    with parts.clock.phase("sync"), ctx.runtime.whole():
        sync_reference(reference, ctx.runtime.model, sync, parts.state.global_step)
    if parts.buffer.experience is not None and not ctx.scoring.allow_stale_reference_logprobs:
        with parts.clock.phase("reference"):
            parts.buffer.replace(refresh_reference(ctx, resources, parts.buffer.experience))


def _gathered(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts, report: StepReport) -> StepPart:
    """What all processes say of the step, in one exchange; what they counted begins again at zero."""
    scorers = [scorer for scorer in (resources.scorer, resources.reference_scorer) if scorer is not None]
    logging = ctx.logging
    is_due = logging.completions_due(parts.state.global_step)
    part = step_part(
        report,
        [scorer.counters.drain() for scorer in scorers],
        resources.sampled.drain(),
        drain_generation_stats(ctx.generation),
        completion_records(report, logging.completions_per_step) if is_due else [],
    )
    part = gather_parts(ctx.runtime.accelerator, part, report.experience.places[report.groups.slice])
    parts.state.num_input_tokens_seen += part.input_tokens
    return part


def _measured(ctx: TrainingLoopContext, parts: LoopParts, report: StepReport, part: StepPart) -> dict[str, float]:
    """The step's numbers but for those of the machine, the same on every process."""
    metrics = step_metrics(report, part, ctx.scoring.weighting) | generation_metrics(part.generation)
    experience, trained_from = report.experience, parts.state.global_step - 1
    metrics["generation/staleness"] = trained_from - part.oldest_version
    if experience.drawing is not None and experience.anchor_version == trained_from:
        metrics |= drawing_metrics(experience.drawing)
    metrics |= parts.guard.metrics()
    metrics["data/input_tokens_seen"] = parts.state.num_input_tokens_seen
    if parts.renders_when_drawn:
        metrics["data/dropped_prompts"] = parts.position.num_dropped
    for name in ("reward/mean", "completion/clipped_ratio"):
        if name in metrics:
            add_running(parts.state, name, metrics[name])
    return metrics


def _record(ctx: TrainingLoopContext, parts: LoopParts, done: _Done, metrics: dict[str, float]) -> None:
    step = parts.state.global_step
    phases, seconds = parts.clock.drain()
    with parts.clock.phase("log"):
        metrics |= drain_running(parts.state)
        metrics |= machine_metrics(phases, seconds, ctx.runtime.accelerator)
        metrics |= throughput_metrics(done.work, phases, seconds, parts.yardstick)
        metrics["throughput/cpu_seconds"] = parts.clock.drain_processor()
        for sentence in parts.health.see(step, metrics, ctx.generation.max_completion_len):
            logger.warning("%s", sentence)
        ctx.logging.write_metrics(step, metrics)
        ctx.logging.write_completions(step, [record for group in done.part.completions for record in group])
        if ctx.runtime.accelerator.is_main_process:
            write_state(parts.controller, ctx.controller, ctx.logging.run_dir, step=step)


def _is_overlapped(resources: StepResources, parts: LoopParts) -> bool:
    return parts.ahead is not None and isinstance(resources.generator, SendingSampler)


def _evaluates(ctx: TrainingLoopContext, resources: StepResources) -> bool:
    return ctx.evaluation.enabled and resources.validation_ctx is not None


def _evaluation_due(ctx: TrainingLoopContext, resources: StepResources, state: TrainingLoopState, total: int) -> bool:
    if not _evaluates(ctx, resources):
        return False
    every = ctx.evaluation.every_n_steps
    return state.global_step == total or (every is not None and state.global_step % every == 0)


def _evaluate(resources: StepResources, parts: LoopParts) -> dict[str, float]:
    assert resources.validation_ctx is not None
    with parts.clock.phase("evaluation"):
        return evaluate(resources.validation_ctx, parts.state.global_step)

"""Saving a run between two steps: when it is due, and before an error ends it that leaves what was trained worth keeping."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from maxent_grpo.config.quoting import setting_word
from maxent_grpo.errors import GenerationError, NonFiniteError, NonFiniteUpdateError, RewardError, StorageError
from maxent_grpo.telemetry.progress import resume_command
from maxent_grpo.training.checkpoint.per_process import written_by
from maxent_grpo.training.checkpoint.run_state import run_state_parts
from maxent_grpo.training.checkpoint.together import save_together
from maxent_grpo.training.checkpoint.weights import weights_part
from maxent_grpo.training.loop_parts import LoopParts
from maxent_grpo.training.rollout_source import RolloutSource
from maxent_grpo.training.types.runtime import TrainingLoopContext

logger = logging.getLogger(__name__)


@contextmanager
def saved_if_not_finite(ctx: TrainingLoopContext, parts: LoopParts, rollouts: RolloutSource) -> Iterator[None]:
    """Save the run as it was before a step whose numbers are not finite, its rollout included, when that ends the run.

    Raises:
        NonFiniteError: the step's, with how to go on.
    """
    try:
        yield
    except NonFiniteUpdateError:
        raise  # the weights are no longer those before the step
    except NonFiniteError as error:
        step, store = parts.state.global_step, parts.saving.store
        if step == 0:
            raise  # nothing is trained yet
        parts.buffer.put_back()
        # what the next rollout fails with comes again when it is asked for again; the step's error is the one to know
        passed_over = (
            (GenerationError, RewardError) if ctx.runtime.accelerator.num_processes == 1 else (GenerationError,)
        )
        with suppress(*passed_over):  # a grader's error is one process's alone, and the others would wait for it
            rollouts.settle(step)
        try:
            save_once(ctx, parts)
        except StorageError as problem:
            logger.error("%s", problem)  # the step's error is the one to know
            raise error from None
        raise NonFiniteError(
            f"{error} The run is saved at step {step}; continue it with {setting_word('checkpoint.resume_from', str(store.latest))}"
        ) from error


@contextmanager
def saved_if_sampling_fails(
    ctx: TrainingLoopContext, parts: LoopParts, settle: Callable[[], None] = lambda: None, *, is_best: bool = False
) -> Iterator[None]:
    """Save the run as it is between two steps, which ``settle`` brings about, when its sampler gives up.

    Raises:
        GenerationError: the sampler's, with how to go on.
    """
    try:
        yield
    except GenerationError as error:
        step, store = parts.state.global_step, parts.saving.store
        if step == 0:
            raise  # nothing is trained yet
        settle()
        save_once(ctx, parts, is_best)
        raise GenerationError(
            f"{error}. The run is saved at step {step}; continue it with {setting_word('checkpoint.resume_from', str(store.latest))}"
        ) from error


def save_due(parts: LoopParts, total: int, is_best: bool) -> bool:
    """Whether a checkpoint is written after this step: the run's last, the best so far, or one that is due."""
    step, every = parts.state.global_step, parts.saving.every_n_steps
    last = step == total or parts.state.stop_training
    return last or is_best or (every is not None and step % every == 0)


def save_once(ctx: TrainingLoopContext, parts: LoopParts, is_best: bool = False) -> None:
    """Write a checkpoint unless the newest one is of this step.

    A folder in which the run began anew from an earlier step may have one of the same number, of another course.
    """
    if parts.saving.newest != parts.state.global_step:
        save(ctx, parts, is_best)


def save(ctx: TrainingLoopContext, parts: LoopParts, is_best: bool) -> None:
    """Write a checkpoint of everything the next step needs; files written so far become durable first. All processes save together.

    Raises:
        StorageError: the disk did not take it; the checkpoints before are whole.
    """
    step, registry = parts.state.global_step, ctx.checkpoint_state_ref
    assert registry is not None
    accelerator, store = ctx.runtime.accelerator, parts.saving.store

    def explain(error: Exception) -> str:
        kept = "no earlier one is there" if store.latest is None else f"{store.latest} is whole"
        return (
            f"step {step}: the checkpoint cannot be written ({error}); {kept}: make room or make {store.directory} writable, "
            f"then continue with {resume_command(ctx.logging.run_dir)}"
        )

    with parts.clock.phase("checkpoint"), ctx.runtime.whole():
        ctx.logging.flush()
        extras = {"step": step, "config": ctx.training_args} | written_by(accelerator)
        pieces = [weights_part(ctx.runtime.model, ctx.runtime.tokenizer), *run_state_parts(registry, extras)]
        folder = save_together(accelerator, store, step, pieces, is_best=is_best, explain=explain)
    parts.saving.newest = step
    if accelerator.is_main_process:
        logger.info("saved %s", folder)

"""Builds a run from its configuration: the only reader of ``RootConfig``, and the only place where parts are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

from maxent_grpo.config.controller import KL_BETA
from maxent_grpo.config.preflight import own_functions
from maxent_grpo.config.resolve import longest_sequence, reference_source, starts_as_base
from maxent_grpo.config.root import RootConfig
from maxent_grpo.config.run import OnNonfinite
from maxent_grpo.distributed import main_first
from maxent_grpo.models.build import LoadedModel, build_model, compile_model
from maxent_grpo.models.lora import attach_adapter
from maxent_grpo.models.warm_start import warm_start
from maxent_grpo.report.atomic import storage_errors
from maxent_grpo.rewards.batch import TrainerState
from maxent_grpo.rewards.functions import imported_function
from maxent_grpo.tasks.base import Task
from maxent_grpo.tasks.build import build_task
from maxent_grpo.tasks.tokenize import PromptCache, RenderedRows
from maxent_grpo.telemetry.data_summary import write_data_facts
from maxent_grpo.telemetry.summary import startup_summary
from maxent_grpo.training.accelerator import make_accelerator
from maxent_grpo.training.checkpoint.best import BestTracker
from maxent_grpo.training.checkpoint.store import CheckpointStore
from maxent_grpo.training.clock import PhaseClock
from maxent_grpo.training.control.build import build_controller
from maxent_grpo.training.control.state import take_over, write_state
from maxent_grpo.training.credit import GradedRollout
from maxent_grpo.training.dynamic_sampling import CarriedGroups
from maxent_grpo.training.evaluation.build import EvaluationParts, MakeGenerator, build_validation
from maxent_grpo.training.experience import Experience, build_experience, prompts_per_rollout
from maxent_grpo.training.loop import RunResult, run_training
from maxent_grpo.training.loop_parts import LoopParts, SavePolicy
from maxent_grpo.training.meta.build import install_meta
from maxent_grpo.training.meta.held_out import STREAM as META_STREAM
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.nonfinite import NonFiniteGuard
from maxent_grpo.training.optim import resolve_schedule
from maxent_grpo.training.parallel import prepare_policy
from maxent_grpo.training.peers import Peers, met
from maxent_grpo.training.prepared_rows import (
    Render,
    prompt_text,
    render_all,
    row_order,
    row_renderer,
    rows_per_epoch,
    style_identity,
    styled,
)
from maxent_grpo.training.profiler import StepProfiler
from maxent_grpo.training.recorded import recorded
from maxent_grpo.training.requeue import requeue_job, wants_requeue
from maxent_grpo.training.resume import (
    Resume,
    config_tree,
    refuse_lost_secrets,
    register_state,
    restore,
)
from maxent_grpo.training.reward_terms import build_rewards
from maxent_grpo.training.rollout_buffer import RolloutBuffer
from maxent_grpo.training.row_stream import DataPosition
from maxent_grpo.training.run_facts import facts
from maxent_grpo.training.sampled_rollout import RolloutAhead, saved_places
from maxent_grpo.training.samplers import TRAIN, local_generator, sampled_distribution
from maxent_grpo.training.sampling_engine import sampling_engine
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.scoring.head_probe import separate_head
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.scoring.reference import KeptReference
from maxent_grpo.training.scoring.sharing import prompt_sharing
from maxent_grpo.training.settings import (
    entropy_mode,
    evaluation_settings,
    generation_settings,
    scoring_settings,
)
from maxent_grpo.training.share.final import write_trained
from maxent_grpo.training.stopping import StopCause, Stopping
from maxent_grpo.training.strategy import strategy_note
from maxent_grpo.training.throughput import yardstick
from maxent_grpo.training.types.choices import ReferenceSource, ZeroSignalStep
from maxent_grpo.training.types.logging import LoggingHandles, Writer
from maxent_grpo.training.types.rewards import GenerationBatch
from maxent_grpo.training.types.runtime import (
    LoopSettings,
    OptimizationSettings,
    RuntimeHandles,
    StepBatchInfo,
    StepResources,
    TrainingLoopContext,
    TrainingLoopState,
)


def run_from_config(
    config: RootConfig,
    overrides: Sequence[str] = (),
    *,
    until: int | None = None,
    watchers: Sequence[Writer] = (),
    started: float | None = None,
) -> RunResult:
    """Run a checked configuration from start to end; ``overrides``, which it was composed from, are kept for a resume.

    ``until`` leaves the run after that optimiser step, as an interruption would; ``watchers`` are told what writers are;
    ``run.max_hours`` counts from ``started``, a time of ``time.monotonic``, by default now.

    Raises:
        ConfigError, DataError, CheckpointError: found only now that the machine, the data or a checkpoint is looked at.
        StorageError: a file of the run cannot be written.
    """
    if config.run.dry:
        raise ValueError("run.dry=true: a dry run is described by training.preview and never started")
    refuse_lost_secrets(config)
    stopping = Stopping.within(config.run.max_hours, started)
    with met(config) as peers:
        with recorded(config, overrides, watchers, peers) as record, ExitStack() as ending:
            result = _run(record.config, record.handles, record.resume, peers, until, stopping, ending)
        # before the first process ends, which with a launcher is the end of all
        if wants_requeue(config.run.requeue, result.stopped):
            requeue_job(got_anywhere=bool(result.metrics) or result.stopped is not StopCause.time_limit)
        peers.part()
    return result


def _run(
    config: RootConfig,
    handles: LoggingHandles,
    resume: Resume | None,
    peers: Peers,
    until: int | None,
    stopping: Stopping,
    ending: ExitStack,
) -> RunResult:
    for setting, target in own_functions(config).items():
        imported_function(setting, target)  # a misspelt name is said before anything is trained
    accelerator = peers.accelerator or make_accelerator(config)
    with main_first(accelerator):  # which keeps what it makes of the data, for the others to read
        task = build_task(config.data)
    loaded = build_model(config.model, positions=longest_sequence(config))
    for note in loaded.notes:
        handles.write_note(note)
    train, held_out = render_all(config, task, loaded)
    with main_first(accelerator):  # the others read its cache
        start_warm(config, task, loaded, handles)
    attach_adapter(loaded.model, config.model, config.seed)
    loaded.model.to(accelerator.device)
    ctx = _context(config, accelerator, task, loaded, train, held_out, handles)
    putting_together = ExitStack()  # looks at the weights in many places
    putting_together.enter_context(ctx.runtime.whole())
    if ctx.reward.workers is not None:
        ending.callback(ctx.reward.workers.close)
    make_generator = ending.enter_context(sampling_engine(config, ctx.runtime, ctx.generation, handles))
    resources = _resources(config, ctx, task, row_renderer(config, loaded), make_generator)
    parts = _loop_parts(config, ctx, resources, train)
    parts.until, parts.stopping = until, stopping
    parts.yardstick = yardstick(
        loaded.model, str(config.model.dtype), accelerator.device, handles.write_note,
        num_processes=accelerator.num_processes,
    )  # fmt: skip
    install_meta(
        config.controller, ctx, resources, parts.controller, rows=train.measured, seed=config.seed,
        generator=local_generator(ctx.runtime, ctx.generation, config.seed, META_STREAM),
    )  # fmt: skip
    register_state(ctx, parts, getattr(task, "fingerprint", ""), seed=config.seed)
    if resume is not None:
        restore(ctx, parts, resume)
    elif config.controller.paths.resume_from is not None:
        has_reference = ctx.runtime.reference_model is not None
        take_over(parts.controller, config.controller.paths.resume_from, ctx.scoring, has_reference=has_reference)
    if accelerator.is_main_process:
        write_state(parts.controller, ctx.controller, handles.run_dir, step=parts.state.global_step)
        known = facts(config, accelerator, task, loaded, train, held_out)
        with storage_errors(handles.run_dir):
            write_data_facts(handles.run_dir, known["data"])
        handles.write_note(startup_summary(config, known))
    putting_together.close()
    with stopping.listening():
        result = run_training(ctx, resources, parts)
    if config.checkpoint.final_model and until is None and not result.stopped:
        with ctx.runtime.whole():
            if accelerator.is_main_process:
                handles.flush()  # the model card is made from the record
                write_trained(config, loaded, handles.run_dir, handles.run_dir, result.global_step)
    return result


def start_warm(config: RootConfig, task: Task, loaded: LoadedModel, handles: LoggingHandles) -> None:
    """The supervised stage before training, for a model that has one."""
    if not config.model.warm_start.enabled:
        return
    settings = config.model.warm_start
    demonstrations = styled(config, task.demonstrations(settings.num_problems, settings.mode_skew, settings.seed))
    report = warm_start(
        loaded, demonstrations, settings,
        identity={"task": task.name, **style_identity(config)}, write=prompt_text(config, loaded.tokenizer),
    )  # fmt: skip
    made = "read from the cache" if report.cached else f"trained in {report.seconds:.0f} s"
    handles.write_note(
        f"warm start: {report.num_steps} supervised steps, last loss {report.final_loss:.2f} nats per answer, {made}"
    )


def _context(
    config: RootConfig,
    accelerator: Accelerator,
    task: Task,
    loaded: LoadedModel,
    train: RenderedRows,
    held_out: RenderedRows,
    handles: LoggingHandles,
) -> TrainingLoopContext:
    """Settings and handles of the whole job."""
    generation = generation_settings(config.generation, loaded.tokenizer, task.answer_alphabet)
    scoring = scoring_settings(
        config.scoring, max_completion_len=generation.max_completion_len, reference=reference_source(config)
    )
    cache = PromptCache(loaded.tokenizer, scoring.batching.prompt_cache_size)
    scoring.batching.prompt_length_cache_get = cache
    schedule = resolve_schedule(
        config.optimization, num_generations=generation.num_generations, num_prompts=rows_per_epoch(task, train)
    )
    reference = KeptReference(
        loaded.model if scoring.reference_logprobs_source == ReferenceSource.model else None,
        is_base=starts_as_base(config),
    )
    if config.model.compile:
        for network in (loaded.model, reference.model):
            if network is not None:
                compile_model(network)
    if (note := strategy_note(config, accelerator)) is not None:
        handles.write_note(note)
    prepared = prepare_policy(config.optimization, schedule, loaded.model, accelerator)
    sampler = row_order(config, task, train)
    runtime = RuntimeHandles(
        accelerator=accelerator,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        train_loader=DataLoader(
            cast(Dataset[dict[str, Any]], train.rows),
            batch_size=prompts_per_rollout(schedule),
            sampler=sampler,
            collate_fn=list,
            generator=torch.Generator(),  # its own, so that iterating leaves the global generator alone
        ),
        train_sampler=sampler,
        device=accelerator.device,
        get_ref_model=reference.get,
        reference_model=reference.model,
        prompt_cache_get=cache,
        wrapped=prepared.wrapped,
        sharded=prepared.sharded,
    )
    rewards = build_rewards(config, task, train.rows)
    settings = LoopSettings(
        generation=generation,
        evaluation=evaluation_settings(config.evaluation, list(held_out.rows)),
        optimization=OptimizationSettings(
            schedule, prepared.handles, config.optimization.zero_signal_step is ZeroSignalStep.skip
        ),
        scoring=scoring,
        controller=config.controller.paths,
    )
    return TrainingLoopContext(
        runtime=runtime,
        reward=rewards,
        settings=settings,
        logging=handles,
        training_args=config_tree(config),
    )


def _resources(
    config: RootConfig,
    ctx: TrainingLoopContext,
    task: Task,
    render: Render,
    make_generator: MakeGenerator,
) -> StepResources:
    scoring, generation = ctx.scoring, ctx.generation
    scorer = TokenScorer(
        sampled_distribution(ctx.runtime, generation),
        scoring.batching,
        entropy=entropy_mode(scoring),
        entropy_carries_gradient=scoring.entropy_coef > 0,
        padded=scoring.trl_reference_scoring,
        sharing=prompt_sharing(ctx.runtime.model, scoring, ctx.logging.write_note),
        head=separate_head(ctx.runtime.model, ctx.logging.write_note),
        single_pass=ctx.runtime.sharded is not None,
    )
    reference_scorer = replace(
        scorer, distribution=scorer.distribution.untruncated(), entropy=None, counters=type(scorer.counters)()
    )
    lent = EvaluationParts(
        task, task.eval_rows, render, make_generator, scorer,
        ctx.runtime, ctx.reward, generation, ctx.evaluation, scoring, ctx.logging, ctx.eval_reward,
        TrainerState(max_steps=ctx.optimization.schedule.total_training_steps),
    )  # fmt: skip
    return StepResources(
        generator=make_generator(generation, config.seed, TRAIN),
        validation_ctx=build_validation(config.evaluation, lent) if ctx.evaluation.enabled else None,
        method=resolve_method(
            scoring,
            score_mode=scoring.weighting.score_mode,
            max_completion_len=generation.max_completion_len,
            # a controller's state brings its own coefficient
            moves_kl_beta=KL_BETA in config.controller.adapted() or config.controller.paths.resume_from is not None,
        ),
        scorer=scorer,
        reference_scorer=reference_scorer if ctx.runtime.reference_model is not None else None,
        seed=config.seed,
    )


def _loop_parts(
    config: RootConfig, ctx: TrainingLoopContext, resources: StepResources, train: RenderedRows
) -> LoopParts:
    clock = PhaseClock(torch.cuda.synchronize if ctx.runtime.device.type == "cuda" else None)

    def rebuild(
        batch: GenerationBatch, graded: GradedRollout, portions: list[RowRange], tree: Mapping[str, Any]
    ) -> Experience:
        info = StepBatchInfo(int(tree["epoch"]), int(tree["step_in_epoch"]), [])
        return build_experience(
            ctx, resources, batch, graded, portions, clock, info, places=saved_places(tree),
            policy_version=int(tree["version"]), anchor_version=int(tree["anchor"]), saved=tree,
        )  # fmt: skip

    saving = config.checkpoint
    return LoopParts(
        state=TrainingLoopState(),
        position=DataPosition(),
        buffer=RolloutBuffer(config.optimization.num_iterations, rebuild),
        controller=build_controller(config.controller, ctx.scoring),
        saving=SavePolicy(
            store=CheckpointStore(
                ctx.logging.run_dir, saving.keep_last, is_writer=ctx.runtime.accelerator.is_main_process
            ),
            every_n_steps=saving.every_n_steps,
            best=BestTracker(saving.best_metric, saving.best_goal, saving.early_stop_patience),
        ),
        rows=train.by_id(),
        profiler=StepProfiler(
            ctx.logging.run_dir,
            config.run.profile_steps if config.run.profile and ctx.runtime.accelerator.is_main_process else [],
            clock,
        ),
        guard=NonFiniteGuard(config.run.on_nonfinite is OnNonfinite.skip, config.run.max_nonfinite),
        renders_when_drawn=train.sample is not None,
        carried=CarriedGroups() if ctx.scoring.dynamic_sampling.enabled else None,
        ahead=RolloutAhead() if config.generation.async_steps else None,
        clock=clock,
    )

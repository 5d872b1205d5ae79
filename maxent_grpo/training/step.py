"""One optimiser step of group-relative policy optimisation, plain or maximum-entropy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from accelerate import Accelerator
from torch import Tensor

from maxent_grpo.distributed import any_rank, global_sum
from maxent_grpo.errors import NonFiniteError, NonFiniteUpdateError
from maxent_grpo.objective.logprobs import sequence_sum
from maxent_grpo.objective.ratios import log_ratio
from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.training.clock import PhaseClock
from maxent_grpo.training.control.base import Controller, InformativeGroups, StepMeasurement
from maxent_grpo.training.control.measure import gathered, step_measurement
from maxent_grpo.training.diagnostics import StepSums
from maxent_grpo.training.experience import Experience
from maxent_grpo.training.generation.streams import batch_uniforms
from maxent_grpo.training.idle_passes import complete_gradient, most_slices
from maxent_grpo.training.loss import SliceTargets
from maxent_grpo.training.meta.inner_step import InnerStep, apply_meta_gradients, discard_step, observe_step
from maxent_grpo.training.method import Method
from maxent_grpo.training.nonfinite import explain_gradient, explain_loss
from maxent_grpo.training.optim import Update, apply_gradients, backward, check_finite_loss
from maxent_grpo.training.scored_rows import FirstLook, ScoredRows, first_look, scored_rows, to_look_at
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.scoring.packing import ModelInputs
from maxent_grpo.training.scoring.policy import TokenScorer, prefetched
from maxent_grpo.training.slice_loss import SliceLoss, behaviour_logp, trainer_logp
from maxent_grpo.training.targets import GroupEvidence, SequenceTargets, group_evidence, group_scores, sequence_targets
from maxent_grpo.training.token_selection import TokenChoice, choose_tokens, step_tokens
from maxent_grpo.training.types.flops import Work
from maxent_grpo.training.types.rewards import LossOutputs, SequenceScores
from maxent_grpo.training.types.runtime import ScoringSettings, StepResources, TrainingLoopContext
from maxent_grpo.training.types.weighting import ControllerValues


@dataclass
class StepReport:
    """What an optimiser step did; the metrics and the completions file are made from it."""

    experience: Experience
    groups: RowRange
    targets: SequenceTargets
    scores: Tensor
    """Policy score of each completion before the update, [P, G]."""
    losses: list[LossOutputs]
    sums: StepSums
    counts: StepCounts
    values: ControllerValues
    update: Update
    controller_metrics: dict[str, float]
    selected_tokens: float | None = None
    """Share of the trained tokens that the method's selection picked out; None without one."""
    is_corrected: bool = False
    """Whether the policy term was weighted by the mismatch between sampler and trainer."""
    work: Work = field(default_factory=Work)
    """What the slices that were trained needed."""
    trained_tokens: int = 0
    """Completion tokens that went through the model and are trained, of all processes."""
    scored: Tensor | None = None
    """[P] groups that were run through the model; None is all of them."""
    nonfinite: str | None = None
    """What was NaN or infinite, in a step that was left out for it; its losses and sums are empty."""


def train_step(
    ctx: TrainingLoopContext,
    resources: StepResources,
    experience: Experience,
    groups: RowRange,
    controller: Controller,
    clock: PhaseClock,
    *,
    step: int,
    skip_nonfinite: bool = False,
) -> StepReport:
    """One update on some groups of a rollout, or none where a loss or gradient is not finite.

    Then parameters, optimiser, schedule and controller are as before the step; with ``skip_nonfinite`` the report says what
    was wrong.

    Raises:
        NonFiniteError: a loss or gradient is NaN or infinite, and such steps are not left out.
        NonFiniteUpdateError: the step was taken, and what it made is not finite.
    """
    before = controller.state_dict()
    try:
        return _update(ctx, resources, experience, groups, controller, clock, step=step)
    except NonFiniteUpdateError:
        raise
    except NonFiniteError as error:
        ctx.optimization.handles.optimizer.zero_grad(set_to_none=True)
        discard_step(ctx)
        if controller.state_dict() != before:
            controller.load_state_dict(before)
        if not skip_nonfinite:
            raise
        return _left_out(ctx, resources, experience, groups, controller, str(error))


def _left_out(
    ctx: TrainingLoopContext,
    resources: StepResources,
    experience: Experience,
    groups: RowRange,
    controller: Controller,
    problem: str,
) -> StepReport:
    """The report of a step without an update: credit is as ever, what the passes would have measured is empty."""
    values = controller.values
    evidence = _evidence(experience, ctx.scoring)
    targets = _credit(experience, evidence, groups, ctx.scoring, values, _method(resources))
    rate = float(ctx.optimization.handles.base_optimizer.param_groups[0]["lr"])
    return StepReport(
        experience, groups, targets, torch.zeros(len(groups), experience.group_size, dtype=torch.float64), [], StepSums(),
        _global_counts(ctx, experience, groups, 0), values, Update(0.0, rate, skipped=True), controller.metrics(),
        scored=experience.scored[groups.slice], nonfinite=problem,
    )  # fmt: skip


def _update(
    ctx: TrainingLoopContext,
    resources: StepResources,
    experience: Experience,
    groups: RowRange,
    controller: Controller,
    clock: PhaseClock,
    *,
    step: int,
) -> StepReport:
    """The update.

    For each prompt x, with G completions y_i drawn from the behaviour policy:
      u_i  utility of y_i                                            (reward)
      A_i  u_i relative to its group                                 (policy term)
      q_i  distribution over the group proportional to exp(u_i / T)  (maximum entropy)
      w_i  argmax_w  E_w[log q] + tau H(w) - beta KL(w || pi_ref)    (maximum entropy)
    then one gradient step on the loss that the method's axes choose; ``training.loss`` writes it out.
    """
    accelerator, scoring = ctx.runtime.accelerator, ctx.scoring
    method, scorer = _method(resources), _scorer(resources)
    rows = scored_rows(experience, groups, scorer, grad_accum_steps=ctx.optimization.schedule.grad_accum_steps)
    counts = _global_counts(ctx, experience, groups, len(rows.pieces))  # the denominators
    evidence = _evidence(experience, scoring)  # u_i, q_i
    informative = evidence.informative(groups.first, groups.last)
    controller.prepare(gathered(accelerator, informative))
    values = controller.values  # tau, beta of this step
    targets = _credit(experience, evidence, groups, scoring, values, method)  # A_i, w_i
    trained = rows.targets(targets)
    with clock.phase("policy"):
        look = None
        if any_rank(accelerator, bool(to_look_at(rows, method))):  # weights are made whole by all processes or by none
            with ctx.runtime.whole():
                look = first_look(rows, scorer, ctx.runtime.model, method)
        chosen = _choose(ctx, resources, rows, trained, look, step)  # tokens, by statistics of the whole step
    if chosen is not None and method.selection is not None and method.selection.count_kept_only:
        counts = counts._replace(tokens=chosen.kept)

    row_scores = _known_scores(rows, look, scoring)
    share = SliceLoss(method, scoring, rows, trained, look, row_scores, values, counts, chosen)
    losses, sums = _gradient(ctx, experience, scorer, share, clock, step=step)
    observe_step(ctx, InnerStep(step, experience, groups, targets, informative, values, counts), clock)
    with clock.phase("optimizer"):
        why = partial(explain_gradient, ctx, experience, rows, share, scorer)
        update = apply_gradients(ctx.optimization, accelerator, step=step, explain=why)
    with clock.phase("measure"):
        sums = sums.merged(accelerator)
        controller.update(_measured(accelerator, informative, values, sums))  # tau, beta for the next step
    apply_meta_gradients(ctx, step, clock)
    return StepReport(
        experience, groups, targets, rows.spread(row_scores), losses, sums, counts, values, update, controller.metrics(),
        None if chosen is None else chosen.selected, method.mismatch is not None,
        rows.work(), int(global_sum(accelerator, [float(rows.mask.sum())])[0]), rows.groups,
    )  # fmt: skip


def _gradient(
    ctx: TrainingLoopContext,
    experience: Experience,
    scorer: TokenScorer,
    share: SliceLoss,
    clock: PhaseClock,
    *,
    step: int,
) -> tuple[list[LossOutputs], StepSums]:
    """The step's gradient, a sum over its slices, each run through the model by itself; their losses, and what was measured."""
    accelerator, rows = ctx.runtime.accelerator, share.scored
    most = most_slices(accelerator, len(rows.pieces))
    fresh = step - 1 == experience.anchor_version
    losses: list[LossOutputs] = []
    sums = StepSums()
    for piece, chunks in clock.waiting("policy", _slices(ctx, scorer, rows)):
        with clock.phase("policy"):
            slopes = share.foreseen(piece, len(chunks), scorer, ctx.runtime)
            raw = scorer.score(ctx.runtime.trained, chunks, rows.width, slopes)  # log pi_theta(y_i | x)
            scores, row_targets, loss = share(raw, piece)
            why = partial(explain_loss, experience, share, piece, scores, row_targets, loss)
            check_finite_loss(loss.loss, accelerator, step=step, explain=why)
        with clock.phase("backward"):
            backward(ctx.optimization, accelerator, loss.loss)
        losses.append(loss)
        with clock.phase("measure"):
            _measure(sums, scores, row_targets, rows, piece, ctx.scoring, share.method, fresh)
    with clock.phase("policy"):
        complete_gradient(ctx, scorer, experience.tokens, len(rows.pieces), most, step=step)
    return losses, sums


def _evidence(experience: Experience, scoring: ScoringSettings) -> GroupEvidence:
    """What the rollout says of its groups: utilities, the distribution over rewards, and the reference."""
    return group_evidence(
        experience.rewards, experience.valid, experience.complete, experience.reference, scoring.weighting,
        experience.behaviour_scores, experience.counted,
    )  # fmt: skip


def _credit(
    experience: Experience,
    evidence: GroupEvidence,
    groups: RowRange,
    scoring: ScoringSettings,
    values: ControllerValues,
    method: Method,
) -> SequenceTargets:
    """Advantages and target weights of the step's groups."""
    of_rollout = sequence_targets(experience.rewards, evidence, scoring.weighting, values, soft=method.soft)
    return of_rollout.groups(groups.first, groups.last)


def _choose(
    ctx: TrainingLoopContext,
    resources: StepResources,
    rows: ScoredRows,
    targets: SequenceTargets,
    look: FirstLook | None,
    step: int,
) -> TokenChoice | None:
    """The tokens that train, from scores of the whole step before the first backward; None where all do."""
    method = _method(resources)
    if method.selection is None:
        return None
    logp = rows.mask.new_zeros(rows.mask.shape, dtype=torch.float32) if look is None else look.logp
    tokens = step_tokens(
        logp,
        behaviour_logp(logp, rows, RowRange(0, len(rows)), method),
        targets.advantages.flatten().to(logp),
        None if look is None else look.entropy,
        batch_uniforms(resources.seed, "token_selection", step, rows.names, rows.mask.shape[1]),
        rows.mask,
    )
    return choose_tokens(ctx.runtime.accelerator, method, ctx.scoring.clipping, tokens, rows.mask)


def _global_counts(ctx: TrainingLoopContext, experience: Experience, groups: RowRange, num_slices: int) -> StepCounts:
    rows, counted = experience.rows(groups).slice, experience.counted[groups.slice]
    local = [
        float((experience.valid[groups.slice] & counted.unsqueeze(-1)).sum()),
        float(experience.mask[rows].sum()),
        float(counted.sum()),
        float(num_slices),
    ]
    return StepCounts(*global_sum(ctx.runtime.accelerator, local))


def _known_scores(rows: ScoredRows, look: FirstLook | None, scoring: ScoringSettings) -> Tensor:
    """[n] scores of the rows that were looked at before, 0 for the others."""
    if look is None:
        return torch.zeros(len(rows), dtype=torch.float64)
    weighting, mask = scoring.weighting, rows.mask.to(look.logp.device)
    summed, lengths = sequence_sum(look.logp, mask), mask.sum(dim=-1)
    return group_scores(summed, lengths, weighting, weighting.score_mode, 1).flatten()


def _slices(
    ctx: TrainingLoopContext, scorer: TokenScorer, rows: ScoredRows
) -> Iterator[tuple[RowRange, list[ModelInputs]]]:
    """Each slice with its forward passes."""
    dtype = next(ctx.runtime.model.parameters()).dtype
    assembled = prefetched(
        rows.pieces, lambda piece: scorer.assemble(rows.tokens, piece, dtype), ctx.scoring.batching.slice_prefetch
    )
    yield from zip(rows.pieces, assembled, strict=True)


def _measure(
    sums: StepSums,
    scores: SequenceScores,
    targets: SliceTargets,
    rows: ScoredRows,
    piece: RowRange,
    scoring: ScoringSettings,
    method: Method,
    at_anchor: bool,
) -> None:
    mask, old = scores.token_mask, scores.old_token_logp
    assert mask is not None
    assert old is not None
    assert scores.token_logp is not None
    logp = scores.token_logp.detach()
    sums.add_policy(method.ratio(log_ratio(logp, old, mask), mask), mask, targets.advantages, scoring.clipping)
    sums.add_behaviour(scores.behavior_logp_sum)
    if scores.policy_entropy_sum is not None:
        sums.add_entropy(scores.policy_entropy_sum.detach(), mask)
    if targets.reference_logp is not None:
        lengths = rows.tokens.completion_attention_mask[piece.slice].sum(dim=-1).tolist()
        sums.add_kl(logp, targets.reference_logp, mask, lengths)
    trainer = trainer_logp(logp, rows, piece)
    known = rows.sampled_known[piece.slice].to(logp.device) & mask
    if not at_anchor:
        # elsewhere the sampler's log-probs would be compared with those of other weights
        known = known & rows.old_known[piece.slice].unsqueeze(-1).to(logp.device)
    sampled = targets.sampled_logp if targets.sampled_logp is not None else trainer
    raw = method.raw_mismatch(trainer, sampled, mask)
    sums.add_gap(trainer, sampled, known, mask)
    sums.add_mismatch(raw, raw if method.mismatch is None else method.mismatch(trainer, sampled, mask), known)


def _measured(
    accelerator: Accelerator, informative: InformativeGroups, values: ControllerValues, sums: StepSums
) -> StepMeasurement:
    """What a controller may act on; ``sums`` are those of all processes."""
    return step_measurement(
        accelerator,
        informative,
        values,
        token_kl=sums.diagnostics().kl_value,
        token_entropy=sums.entropy / sums.entropy_tokens if sums.entropy_tokens else None,
    )


def _method(resources: StepResources) -> Method:
    assert resources.method is not None, "setup resolves the method"
    return resources.method


def _scorer(resources: StepResources) -> TokenScorer:
    assert resources.scorer is not None, "setup builds the scorer"
    return resources.scorer

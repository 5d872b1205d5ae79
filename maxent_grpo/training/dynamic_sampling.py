"""Dynamic sampling: prompts are drawn until every group of a rollout carries a signal (DAPO, arXiv 2503.14476).

A group carries one when its valid utilities differ; with utilities 0 and 1 that is 0 < number of right answers < G. Utilities
are taken before shaping: a length penalty makes no signal of a group that is all right.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from maxent_grpo.distributed import any_rank, gather_all, global_sum
from maxent_grpo.errors import GenerationError
from maxent_grpo.objective.weights import informative_groups
from maxent_grpo.training.carried_groups import CarriedGroups, KeptGroup
from maxent_grpo.training.clock import PhaseClock
from maxent_grpo.training.credit import Grading, nothing_graded, valid_rows
from maxent_grpo.training.experience import (
    Rows,
    local_portions,
    places_of,
    prompts_per_rollout,
    rollout_tokens,
    sample_prompts,
    trainer_state,
)
from maxent_grpo.training.old_scores import EarlierScores, score_at_weights
from maxent_grpo.training.row_stream import RowStream
from maxent_grpo.training.sampled_groups import Groups, join_batches, join_groups, select_groups
from maxent_grpo.training.sampled_rollout import SampledRollout
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.types.rewards import DrawingReport
from maxent_grpo.training.types.runtime import StepResources, TrainingLoopContext
from maxent_grpo.training.types.samplers import SharingSampler

logger = logging.getLogger(__name__)


@dataclass
class _Drawing:
    """What the draws of one rollout gave; counts of all processes, sums of this one."""

    num_rounds: int = 0
    num_drawn: int = 0
    num_informative: int = 0
    utility_sum: float = 0.0
    num_utilities: int = 0
    logged: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Numbers that reward functions logged, also of groups that were not kept."""


def prompts_to_draw(missing: int, *, drawn: int, informative: int, rollout: int) -> int:
    """How many prompts to draw for ``missing`` groups.

    At first one each; then as many as it takes at the rate at which this rollout's prompts were kept so far, but no more
    than a whole rollout at once: ceil(missing * drawn / informative), at most ``rollout``.
    """
    if drawn == 0:
        return missing
    return min(-(-missing * drawn // informative), rollout) if informative else rollout


def first_places(places: Sequence[Sequence[int]], count: int) -> list[int]:
    """The first ``count`` places in the stream of rows among the groups of all processes: what was drawn first is trained first."""
    return sorted(place for part in places for place in part)[:count]


def portions_of(own: Sequence[int], places: Sequence[int], prompts_per_step: int) -> list[RowRange]:
    """One process's groups of each optimiser step.

    Args:
        own: places of the process's groups, ascending; all of them among ``places``.
        places: places of the groups of all processes, ascending. Every ``prompts_per_step`` of them make a step.
        prompts_per_step: groups of a step; the last one has what is left.
    """
    portions: list[RowRange] = []
    first = 0
    for at in range(0, len(places), prompts_per_step):
        step = set(places[at : at + prompts_per_step])
        last = first + sum(place in step for place in own)
        portions.append(RowRange(first, last))
        first = last
    return portions


def gather_informative(
    ctx: TrainingLoopContext,
    resources: StepResources,
    stream: RowStream,
    carried: CarriedGroups,
    rows: Rows,
    clock: PhaseClock,
    step: int,
    *,
    scores_surplus: bool,
) -> SampledRollout:
    """Draw, sample and grade prompts until a rollout's groups all carry a signal, or the rounds are used up.

    Draws go on over the end of an epoch, so that every rollout is full. All processes draw the same number of rounds,
    decided by the groups of all of them. ``scores_surplus``: the trainer still has the weights that sample, and the groups
    that are carried over are scored with them.

    Raises:
        GenerationError: no group carries a signal.
    """
    settings, schedule, accelerator = ctx.scoring.dynamic_sampling, ctx.optimization.schedule, ctx.runtime.accelerator
    rollout = prompts_per_rollout(schedule)
    found = carried.take()
    num_carried = int(global_sum(accelerator, [len(found)])[0])
    start = stream.draw(0)
    drawing = _Drawing()
    while (
        missing := rollout - num_carried - drawing.num_informative
    ) > 0 and drawing.num_rounds <= settings.max_refill:
        count = prompts_to_draw(
            missing, drawn=drawing.num_drawn, informative=drawing.num_informative, rollout=rollout
        )  # fmt: skip
        found += _draw(ctx, resources, stream, count, rows, clock, step, drawing)

    places = first_places(gather_all(accelerator, [group.place for group in found]), rollout)
    trained = set(places)
    used = [group for group in found if group.place in trained]
    _require_signal(ctx, drawing, used)
    if settings.carry_over:
        surplus = [group for group in found if group.place not in trained]
        with clock.phase("old_policy"):
            carried.groups = _scored(ctx, resources, surplus) if scores_surplus else surplus
    batch, graded = join_groups([group.sampled for group in used]) if used else _nothing(ctx)
    return SampledRollout(
        (batch, replace(graded, logged=drawing.logged)),
        portions_of([group.place for group in used], places, schedule.prompts_per_step),
        [group.place for group in used],
        start.epoch,
        start.step_in_epoch,
        step,
        _earlier(used),
        _report(ctx, drawing, num_carried, len(places)),
    )


def first_draw(ctx: TrainingLoopContext, carried: CarriedGroups) -> int:
    """Prompts that the first round of the next rollout draws."""
    rollout = prompts_per_rollout(ctx.optimization.schedule)
    missing = rollout - int(global_sum(ctx.runtime.accelerator, [len(carried.groups)])[0])
    return prompts_to_draw(missing, drawn=0, informative=0, rollout=rollout)


def drawing_metrics(report: DrawingReport) -> dict[str, float]:
    """The numbers of a rollout's draws, for the line of its first optimiser step."""
    metrics = {
        "sampling/prompts_drawn": float(report.num_drawn),
        "sampling/refill_rounds": float(report.refill_rounds),
        "sampling/carried_groups": float(report.num_carried),
        "sampling/surplus_groups": float(report.num_surplus),
        "sampling/missing_groups": float(report.num_missing),
    }
    if report.num_drawn:
        metrics["sampling/keep_rate"] = report.num_informative / report.num_drawn
    if not math.isnan(report.mean_utility):
        metrics["reward/drawn_mean"] = report.mean_utility
    return metrics


def _draw(
    ctx: TrainingLoopContext,
    resources: StepResources,
    stream: RowStream,
    count: int,
    rows: Rows,
    clock: PhaseClock,
    step: int,
    drawing: _Drawing,
) -> list[KeptGroup]:
    """One round: this process's groups that carry a signal; counts them in ``drawing``."""
    first = stream.num_drawn
    drawn = stream.draw(count, across_epochs=True)
    prompts = drawn.batch
    grading = Grading(rows, ctx.reward, trainer_state(ctx, drawn.epoch, step))
    elsewhere = _sampled_elsewhere(ctx, prompts)
    with clock.phase("rollout"):
        _count(ctx, resources, elsewhere[0])
        batch, _ = sample_prompts(ctx, resources, prompts, grading, required=False)
        _count(ctx, resources, elsewhere[1])
    kept: list[int] = []
    places: list[int] = []
    sampled: Groups | None = None
    if batch.prompts:  # nothing to grade where no group came back complete, or the round left this process out
        with clock.phase("reward"):
            graded = grading.finish(batch)
        sampled, places = (batch, graded), places_of(ctx, prompts, batch.prompts, first)
        valid = valid_rows(graded, ctx.scoring.truncation)
        utilities = torch.tensor(graded.utilities, dtype=torch.float64).view_as(valid)
        kept = torch.nonzero(informative_groups(utilities, valid)).flatten().tolist()
        drawing.utility_sum += float(utilities[valid].sum())
        drawing.num_utilities += int(valid.sum())
        for name, numbers in graded.logged.items():
            drawing.logged.setdefault(name, []).extend(numbers)
    drawing.num_rounds += 1
    drawing.num_drawn += len(prompts)
    drawing.num_informative += int(global_sum(ctx.runtime.accelerator, [len(kept)])[0])
    return [KeptGroup(places[n], select_groups(sampled, [n]), step) for n in kept] if sampled else []


def _sampled_elsewhere(ctx: TrainingLoopContext, prompts: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The prompts of other processes: those before this one's first prompt of the same row, and the others.

    A rollout may ask a row twice, once in each of two epochs, and the second time it wants other completions than the first,
    whichever processes ask.
    """
    numbered = list(enumerate(prompts))
    own = {place for shard in local_portions(numbered, ctx) for place, _ in shard}
    first: dict[str, int] = {}
    for place in sorted(own):
        first.setdefault(prompts[place]["row_id"], place)
    before: list[str] = []
    after: list[str] = []
    for place, row in numbered:
        if place not in own:
            (before if place < first.get(row["row_id"], len(prompts)) else after).append(row["prompt"])
    return before, after


def _count(ctx: TrainingLoopContext, resources: StepResources, prompts: Sequence[str]) -> None:
    if isinstance(resources.generator, SharingSampler):
        resources.generator.count_elsewhere(prompts, ctx.generation.num_generations)


def _nothing(ctx: TrainingLoopContext) -> Groups:
    """The groups of a process that has none."""
    return join_batches([]), nothing_graded(ctx.reward, ctx.generation.num_generations)


def _scored(ctx: TrainingLoopContext, resources: StepResources, groups: Sequence[KeptGroup]) -> list[KeptGroup]:
    """The groups with what was not scored yet scored now, at the weights that sampled it: after the update it is too late."""
    fresh = [group for group in groups if group.logp is None]
    if not fresh:
        return list(groups)
    batch, graded = join_groups([group.sampled for group in fresh])
    shaped = rollout_tokens(ctx, batch, graded)
    rows = RowRange(0, shaped.tokens.total_sequences)
    logp, entropy = score_at_weights(ctx, resources, shaped.tokens, shaped.measured, rows)
    if ctx.scoring.policy_entropy_bonus_coef == 0:
        entropy = None
    scored = [group for group in groups if group.logp is not None]
    for number, group in enumerate(fresh):
        own = slice(number * graded.group_size, (number + 1) * graded.group_size)
        width = max(len(record.token_ids) for record in graded.records[own])
        means = None if entropy is None else entropy[own].clone()
        scored.append(replace(group, logp=logp[own, :width].clone(), token_entropy_mean=means))
    return scored


def _earlier(used: Sequence[KeptGroup]) -> EarlierScores | None:
    """The scores that groups carried over bring; these stand first."""
    carried = [(group.version, group.logp) for group in used if group.logp is not None]
    if not carried:
        return None
    entropies = [group.token_entropy_mean for group in used if group.token_entropy_mean is not None]
    return EarlierScores([version for version, _ in carried], [logp for _, logp in carried], entropies or None)


def _report(ctx: TrainingLoopContext, drawing: _Drawing, num_carried: int, num_used: int) -> DrawingReport:
    rollout, drawn = prompts_per_rollout(ctx.optimization.schedule), drawing.num_drawn
    total, count = global_sum(ctx.runtime.accelerator, [drawing.utility_sum, float(drawing.num_utilities)])
    if num_used < rollout:
        logger.warning(
            "dynamic sampling: %d of %d groups carry a signal after %d refill rounds and %d prompts, of which %.0f %% were "
            "kept; the update is made with these",
            num_used, rollout, drawing.num_rounds - 1, drawn, 100 * drawing.num_informative / max(drawn, 1),
        )  # fmt: skip
    return DrawingReport(
        num_drawn=drawn,
        num_informative=drawing.num_informative,
        refill_rounds=max(drawing.num_rounds - 1, 0),
        num_carried=num_carried,
        num_surplus=num_carried + drawing.num_informative - num_used,
        num_missing=rollout - num_used,
        mean_utility=total / count if count else math.nan,
    )


def _require_signal(ctx: TrainingLoopContext, drawing: _Drawing, used: Sequence[KeptGroup]) -> None:
    """Raises GenerationError on every process unless one of them has a group to train on."""
    accelerator, rounds = ctx.runtime.accelerator, ctx.scoring.dynamic_sampling.max_refill
    if any_rank(accelerator, bool(used)):
        return
    total, count = global_sum(accelerator, [drawing.utility_sum, float(drawing.num_utilities)])
    seen = f"their mean utility was {total / count:.3g}" if count else "none had a completion with a reward"
    raise GenerationError(
        f"dynamic sampling: {drawing.num_informative} of {drawing.num_drawn} prompts, drawn in {drawing.num_rounds} rounds "
        f"(scoring.dynamic_sampling.max_refill={rounds}), gave a group whose utilities differ; {seen}. The prompts are "
        "all too hard or all too easy for the model: choose others, raise generation.num_generations or max_refill, or train "
        "on every group with scoring.dynamic_sampling.enabled=false"
    )

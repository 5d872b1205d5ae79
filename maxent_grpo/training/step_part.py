"""One process's part of an optimiser step as its metrics see it: small, and put together with the others' before any mean is taken.

Groups are vectors and come in the order of their places, so that what is computed from the joined parts is what one process
with all groups computes. Everything else is a count or a sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from maxent_grpo.distributed import gather_all
from maxent_grpo.training.experience import Experience
from maxent_grpo.training.group_order import in_order, order_of
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.scoring.policy import ScoringCounters
from maxent_grpo.training.step import StepReport
from maxent_grpo.training.targets import policy_group_log_probs
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.flops import Work
from maxent_grpo.training.types.generation import SamplingCounters, counted
from maxent_grpo.training.types.rewards import LossOutputs, ReferenceLogprobs


@dataclass(frozen=True)
class StepGroups:
    """What is known of each of a step's groups; [P, G] unless its description says otherwise."""

    valid: Tensor
    """Completions with a reward that are not excluded."""
    right: Tensor
    """Completions whose utility reaches `right_threshold`."""
    utilities: Tensor
    """As credit saw them."""
    earned: Tensor
    """Before shaping."""
    shaped: Tensor | None
    """After shaping, before any normalisation; None where nothing shapes."""
    terms: dict[str, Tensor]
    """Value of each reward term; nan where it abstained."""
    advantages: Tensor
    row_weights: Tensor | None
    """Factors of the advantages; None without."""
    answer_entropy: Tensor | None
    """[P] entropy of the group's answers [nats]; None where nothing asks for it."""
    discount: Tensor | None
    """[P] factor of the advantages for that entropy."""
    distinct_modes: Tensor
    """[P] different right answers."""
    lengths: Tensor
    """Completion tokens, the end token included."""
    cut: Tensor
    """Completions cut by the length limit."""
    outside_tail: Tensor
    """Completion tokens outside the trained tail window; 0 without one."""
    scored: Tensor
    """[P] groups that were run through the model."""
    takes_part: Tensor
    """Completions that take part in the listwise term."""
    log_weights: Tensor
    """Log of the target weights."""
    log_policy: Tensor
    """Log of the policy over the completions that take part."""

    def __len__(self) -> int:
        return len(self.valid)


@dataclass(frozen=True)
class RolloutReference:
    """The reference on the scored completions of the rollout that a step belongs to, trained tokens only."""

    completions: int
    logp_mean: float
    """Mean over completions of the log-probability per token [nats]."""
    mean_length: float
    """[tokens]"""
    token_logp_mean: float
    """Mean over tokens [nats]."""
    score_mean: float
    """Mean score in the configured mode [nats]."""


@dataclass(frozen=True)
class LossSums:
    """Terms of the loss, summed over slices."""

    total: float = 0
    policy: float = 0
    listwise: float = 0
    kl: float = 0
    weighted_kl: float = 0
    entropy: float = 0
    clip: float | None = None
    """None where no slice had the term."""
    log_ratio: float = 0
    """Sum over completions of the absolute log of their ratios [nats]."""
    tokens: float = 0
    """Trained tokens that these are divided by."""


@dataclass(frozen=True)
class StepPart:
    """One process's part of a step, or those of all put together."""

    groups: StepGroups
    losses: LossSums
    reference: RolloutReference | None
    rejected: Counter[str]
    """Completions that did not read as an answer, by reason."""
    failures: Counter[tuple[str, str]]
    """Values missing because a term failed, by term and how."""
    abstentions: int
    """Term values left out, of the rollout."""
    logged: dict[str, list[float]]
    """Numbers that reward functions logged in the rollout."""
    scoring: list[ScoringCounters]
    """What each scorer did since the last line."""
    generation: dict[str, int]
    """What the sampler counted since the last line."""
    sampled: SamplingCounters
    """What was sampled since the last line."""
    trained: Work
    """What the trained passes needed."""
    input_tokens: float
    """Tokens that the step fed to training, each prompt once per completion."""
    oldest_version: int
    """Optimiser step of the oldest weights that sampled one of the groups."""
    completions: list[list[dict[str, Any]]] = field(default_factory=list[list[dict[str, Any]]])
    """First groups of the step as the completions file has them; empty where it is not written."""


def gather_parts(accelerator: Accelerator, part: StepPart, places: Sequence[int]) -> StepPart:
    """The parts of all processes as one; ``places`` are those of this process's groups. Every process calls it."""
    if accelerator.num_processes == 1:
        return part
    found: list[tuple[list[int], StepPart]] = gather_all(accelerator, (list(places), part))
    return joined([own for own, _ in found], [given for _, given in found])


def joined(places: Sequence[Sequence[int]], parts: Sequence[StepPart]) -> StepPart:
    """Some parts as one, their groups in the order of the places."""
    references = [part.reference for part in parts if part.reference is not None]
    return StepPart(
        groups=in_order([part.groups for part in parts], order_of(places)),
        losses=_added([part.losses for part in parts]),
        reference=_together(references) if references else None,
        rejected=sum((part.rejected for part in parts), Counter[str]()),
        failures=sum((part.failures for part in parts), Counter[tuple[str, str]]()),
        abstentions=sum(part.abstentions for part in parts),
        logged={
            name: [number for part in parts for number in part.logged.get(name, [])]
            for name in dict.fromkeys(name for part in parts for name in part.logged)
        },
        scoring=[_added(counters) for counters in zip(*(part.scoring for part in parts), strict=True)],
        generation={name: counted(name, [part.generation[name] for part in parts]) for name in parts[0].generation},
        sampled=_added([part.sampled for part in parts]),
        trained=sum((part.trained for part in parts), Work()),
        input_tokens=sum(part.input_tokens for part in parts),
        oldest_version=min(part.oldest_version for part in parts),
        completions=_first_groups(places, [part.completions for part in parts]),
    )


def step_part(
    report: StepReport,
    scoring: Sequence[ScoringCounters],
    sampled: SamplingCounters,
    generation: Mapping[str, int],
    completions: list[list[dict[str, Any]]],
) -> StepPart:
    """This process's part of a step.

    Args:
        report: the step.
        scoring: what each scorer did since the last line.
        sampled: what was sampled since the last line.
        generation: what the sampler counted since the last line.
        completions: the groups for the completions file.
    """
    experience, rows = report.experience, report.experience.rows(report.groups)
    metadata = experience.graded.metadata[rows.slice]
    return StepPart(
        groups=_groups(report),
        losses=_losses(report.losses),
        reference=_reference(experience.reference, experience),
        rejected=Counter(entry["reason"] for entry in metadata if entry["reason"]),
        failures=Counter((name, why) for entry in metadata for name, why in entry["failures"].items()),
        abstentions=experience.graded.abstentions,
        logged=experience.graded.logged,
        scoring=list(scoring),
        generation=dict(generation),
        sampled=sampled,
        trained=report.work,
        input_tokens=_input_tokens(experience, rows),
        oldest_version=experience.oldest_version(report.groups),
        completions=completions,
    )


def _groups(report: StepReport) -> StepGroups:
    experience, targets, rewards = report.experience, report.targets, report.experience.rewards
    groups, rows, size = report.groups.slice, experience.rows(report.groups).slice, experience.group_size
    records = experience.graded.records[rows]
    modes = [entry["mode"] for entry in experience.graded.metadata[rows]]
    attended, tail = experience.tokens.completion_attention_mask[rows], experience.tokens.score_tail_tokens
    outside = torch.zeros(len(records)) if tail is None else (attended.sum(dim=-1) - tail).clamp(min=0)

    def by_row(values: Sequence[float] | None) -> Tensor | None:
        return None if values is None else torch.tensor(values[rows], dtype=torch.float64).view(-1, size)

    def by_group(values: Sequence[Any] | None) -> Tensor | None:
        return None if values is None else torch.tensor(values[groups], dtype=torch.float64)

    return StepGroups(
        valid=targets.valid,
        right=targets.right,
        utilities=targets.utilities,
        earned=torch.tensor(rewards.total_utils[rows], dtype=torch.float64).view(-1, size),
        shaped=by_row(rewards.shaped_utils),
        terms={
            name: torch.tensor(values[rows], dtype=torch.float64).view(-1, size)
            for name, values in experience.graded.per_term.items()
        },
        advantages=targets.advantages,
        row_weights=None if rewards.row_weights is None else by_row([w for row in rewards.row_weights for w in row]),
        answer_entropy=by_group(rewards.seed_semantic_entropies),
        discount=by_group(rewards.seed_advantage_scales),
        distinct_modes=torch.tensor(
            [len(set(modes[at : at + size]) - {None}) for at in range(0, len(modes), size)], dtype=torch.long
        ),
        lengths=torch.tensor([len(record.token_ids) for record in records], dtype=torch.long).view(-1, size),
        cut=torch.tensor([record.finish_reason is FinishReason.length for record in records], dtype=torch.bool).view(
            -1, size
        ),
        outside_tail=outside.long().view(-1, size),
        scored=torch.ones(len(report.groups), dtype=torch.bool) if report.scored is None else report.scored,
        takes_part=targets.listwise_valid,
        log_weights=targets.log_weights,
        log_policy=policy_group_log_probs(targets, report.scores),
    )


def _losses(losses: Sequence[LossOutputs]) -> LossSums:
    clipped = [loss.clip_loss_scalar for loss in losses if loss.clip_loss_scalar is not None]
    return LossSums(
        total=sum(loss.total_loss_scalar for loss in losses),
        policy=sum(loss.policy_loss_scalar for loss in losses),
        listwise=sum(loss.scalars.listwise_loss for loss in losses),
        kl=sum(loss.kl_loss_scalar for loss in losses),
        weighted_kl=sum(loss.weighted_kl_loss_scalar for loss in losses),
        entropy=sum(loss.scalars.entropy_loss for loss in losses),
        clip=sum(clipped) if clipped else None,
        log_ratio=sum(float(loss.log_ratio_train.abs().sum()) for loss in losses),
        tokens=sum(float(loss.denom_tok_tensor.sum()) for loss in losses),
    )


def _reference(reference: ReferenceLogprobs | None, experience: Experience) -> RolloutReference | None:
    if reference is None:
        return None
    rows = experience.scored.repeat_interleave(experience.group_size).to(reference.ref_logp_sum.device)
    tokens = reference.ref_tok_counts[rows].sum().clamp(min=1)
    return RolloutReference(
        completions=int(rows.sum()),
        logp_mean=reference.ref_logp_mean,
        mean_length=reference.avg_completion_tokens,
        token_logp_mean=float(reference.ref_logp_sum_raw[rows].sum() / tokens),
        score_mean=float(reference.ref_logp_sum[rows].mean()),
    )


def _together(parts: Sequence[RolloutReference]) -> RolloutReference:
    """The same of all parts' completions."""
    parts = [part for part in parts if part.completions] or parts[:1]
    counts = [float(part.completions) for part in parts]
    return RolloutReference(
        completions=sum(part.completions for part in parts),
        logp_mean=_weighted([part.logp_mean for part in parts], counts),
        mean_length=_weighted([part.mean_length for part in parts], counts),
        token_logp_mean=_weighted(
            [part.token_logp_mean for part in parts], [part.completions * part.mean_length for part in parts]
        ),
        score_mean=_weighted([part.score_mean for part in parts], counts),
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    """Mean of the values; 0 where all weights are."""
    total = sum(value * weight for value, weight in zip(values, weights, strict=True))
    return total / max(sum(weights), 1.0)


def _added(parts: Sequence[Any]) -> Any:
    """Counts or sums of one kind added up, field by field; a field that is None everywhere stays None."""
    totals: dict[str, Any] = {}
    for each in fields(parts[0]):
        values = [getattr(part, each.name) for part in parts]
        given = [value for value in values if value is not None]
        totals[each.name] = sum(given[1:], given[0]) if given else None
    return type(parts[0])(**totals)


def _first_groups(
    places: Sequence[Sequence[int]], parts: Sequence[Sequence[list[dict[str, Any]]]]
) -> list[list[dict[str, Any]]]:
    """The groups that processes sent, each its first ones, in the order of their places."""
    sent = [
        (place, group) for own, part in zip(places, parts, strict=True) for place, group in zip(own, part, strict=False)
    ]
    return [group for _, group in sorted(sent, key=lambda pair: pair[0])]


def _input_tokens(experience: Experience, rows: RowRange) -> float:
    tokens = experience.tokens
    prompts = sum(entry.length for entry in tokens.prompt_entries[rows.slice])
    return float(prompts + int(tokens.completion_attention_mask[rows.slice].sum()))

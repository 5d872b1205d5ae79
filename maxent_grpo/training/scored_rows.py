"""The sequences of an optimiser step that are run through the model, apart from those whose gradient is exactly zero."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from maxent_grpo.training.experience import Experience, loader_ranges
from maxent_grpo.training.method import Method
from maxent_grpo.training.scoring.batch import RowRange, cut_groups, select_groups
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.scoring.reference import score_without_gradient
from maxent_grpo.training.scoring.work import rows_work
from maxent_grpo.training.targets import SequenceTargets
from maxent_grpo.training.types.flops import Work
from maxent_grpo.training.types.rewards import ScoreBatch


@dataclass(frozen=True)
class ScoredRows:
    """What an experience holds of the scored groups of a step, prompt-major; n rows, T tokens."""

    tokens: ScoreBatch
    mask: Tensor
    """[n, T] tokens that are trained."""
    sampled_logp: Tensor
    """[n, T] log-probs as the sampler reported them."""
    sampled_known: Tensor
    """[n, T] where it reported one."""
    old_logp: Tensor | None
    """[n, T] the trainer's log-probs at the anchor of each row."""
    old_known: Tensor
    """[n] rows that have them."""
    reference_logp: Tensor | None
    """[n, T]."""
    names: list[tuple[str, int]]
    """Row and sample number of each sequence."""
    group_size: int
    """G."""
    groups: Tensor
    """[P] which of the step's groups these are."""
    pieces: list[RowRange]
    """The slices, within these rows."""

    def __len__(self) -> int:
        return self.tokens.total_sequences

    @property
    def width(self) -> int:
        """T."""
        return self.tokens.completion_ids.shape[1]

    def work(self) -> Work:
        """What one pass over the slices needs."""
        return sum((rows_work(self.tokens, piece) for piece in self.pieces), Work())

    def targets(self, step: SequenceTargets) -> SequenceTargets:
        """The targets of these rows' groups out of the step's."""
        tensors = {name: value[self.groups] for name, value in vars(step).items() if isinstance(value, Tensor)}
        return replace(step, **tensors)

    def spread(self, values: Tensor) -> Tensor:
        """Values of these rows [n] at their places among the step's groups [P, G], 0 elsewhere."""
        everywhere = values.new_zeros((len(self.groups), self.group_size))
        everywhere[self.groups] = values.view(-1, self.group_size)
        return everywhere


def scored_rows(
    experience: Experience, groups: RowRange, scorer: TokenScorer, *, grad_accum_steps: int = 1
) -> ScoredRows:
    """The scored rows of some groups, cut into slices within each loader batch."""
    size, step = experience.group_size, experience.scored[groups.slice]
    marked = torch.zeros_like(experience.scored)
    marked[groups.slice] = step
    rows = marked.repeat_interleave(size)
    tokens = select_groups(experience.tokens, marked, size)
    pieces: list[RowRange] = []
    first = 0
    for part in loader_ranges(groups, grad_accum_steps):
        last = first + size * int(experience.scored[part.slice].sum())
        pieces += scorer.plan(tokens, RowRange(first, last))
        first = last
    reference = None if experience.reference is None else experience.reference.ref_token_logp
    everything = RowRange(0, experience.tokens.total_sequences)
    return ScoredRows(
        tokens=tokens,
        mask=experience.mask[rows],
        sampled_logp=experience.sampled_logp[rows],
        sampled_known=experience.sampled_known[rows],
        old_logp=None if experience.old_logp is None else experience.old_logp[rows.to(experience.old_logp.device)],
        old_known=experience.old_rows(everything)[rows],
        reference_logp=None if reference is None else reference[rows.to(reference.device)],
        names=[
            (group[0].row_id, sample)
            for group, kept in zip(experience.batch.records, marked.tolist(), strict=True)
            if kept
            for sample in range(size)
        ],
        group_size=size,
        groups=step,
        pieces=pieces,
    )


@dataclass(frozen=True)
class FirstLook:
    """Scores without gradient, taken before the first backward pass of a step."""

    rows: Tensor
    """[n] rows that were looked at."""
    logp: Tensor
    """[n, T]; 0 elsewhere."""
    entropy: Tensor | None
    """[n, T]; 0 elsewhere."""


def to_look_at(rows: ScoredRows, method: Method) -> list[RowRange]:
    """The slices that have to be scored before the first backward pass: all where tokens are selected, else those that cut groups.

    The listwise coefficient of a row depends on its whole group, which a slice that cuts the group does not hold.
    """
    if method.selection is not None:
        return rows.pieces
    return cut_groups(rows.pieces, rows.group_size) if method.listwise_scale > 0 else []


def first_look(rows: ScoredRows, scorer: TokenScorer, model: PreTrainedModel, method: Method) -> FirstLook | None:
    """One pass over what has to be known of the whole step, see ``to_look_at``; None where that is nothing."""
    pieces = to_look_at(rows, method)
    if not pieces:
        return None
    places = torch.cat([torch.arange(piece.first, piece.last) for piece in pieces])
    logp, entropy = score_without_gradient(scorer, model, rows.tokens, pieces)
    seen = torch.zeros(len(rows), dtype=torch.bool)
    seen[places] = True

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros((len(rows), values.shape[1])).index_copy_(0, places.to(values.device), values)

    return FirstLook(seen, spread(logp), None if entropy is None else spread(entropy))

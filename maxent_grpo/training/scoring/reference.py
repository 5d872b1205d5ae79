"""Log-probabilities under the reference: a frozen copy of the policy as it started, or one that follows it slowly."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from maxent_grpo.models.adapter import shared_copy, without_adapter
from maxent_grpo.objective.logprobs import sequence_score, sequence_sum
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.scoring.policy import TokenScorer, prefetched
from maxent_grpo.training.types.rewards import ReferenceLogprobs, ScoreBatch
from maxent_grpo.training.types.runtime import ReferenceSync
from maxent_grpo.training.types.weighting import WeightingSettings


class KeptReference:
    """The reference as the run begins, or nothing where no coefficient needs one.

    It has its own copy of the weights that are trained and shares those that are frozen, so that under an adapter there is one
    base. A policy that begins as the base itself (``is_base``: a fresh adapter adds nothing) has the base for a reference,
    without an adapter. Modules are never shared: nothing is switched while the policy or another thread computes.
    """

    def __init__(self, policy: PreTrainedModel | None, *, is_base: bool = False) -> None:
        self.model: PreTrainedModel | None = None
        if policy is not None:
            trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
            kept = without_adapter(policy) if is_base else shared_copy(policy, [*trained, *policy.buffers()])
            self.model = kept.requires_grad_(False).eval()

    def get(self) -> PreTrainedModel:
        """The reference; asked for by scoring only."""
        assert self.model is not None, "no coefficient pulls towards a reference, so none was kept"
        return self.model


def score_without_gradient(
    scorer: TokenScorer, model: PreTrainedModel, batch: ScoreBatch, slices: Iterable[RowRange]
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities [N, T] and entropies of all slices' rows, in order, without gradient."""
    dtype = next(model.parameters()).dtype
    width = batch.completion_ids.shape[1]
    with torch.no_grad():
        parts = [
            scorer.score(model, chunks, width)
            for chunks in prefetched(
                slices, lambda rows: scorer.assemble(batch, rows, dtype), scorer.batching.slice_prefetch
            )
        ]
    entropies = [part.entropy for part in parts if part.entropy is not None]
    return torch.cat([part.logp for part in parts]), torch.cat(entropies) if len(entropies) == len(parts) else None


def reference_from_tokens(
    token_logp: Tensor, mask: Tensor, weighting: WeightingSettings, scored: Tensor | None = None
) -> ReferenceLogprobs:
    """Sums, scores in the configured mode and means from per-token reference log-probabilities [N, T].

    Args:
        token_logp: log-probabilities under the reference.
        mask: [N, T] tokens that sequence scores are made of.
        weighting: how sequences are scored.
        scored: [N] rows that means are taken over; None is all of them.
    """
    mask = mask.to(token_logp.device)
    raw, lengths = sequence_sum(token_logp, mask), mask.sum(dim=-1)
    rows = slice(None) if scored is None else scored.to(token_logp.device)
    per_token = raw / lengths.clamp(min=1)
    count = max(len(raw[rows]), 1)
    return ReferenceLogprobs(
        ref_logp_sum=sequence_score(raw, lengths, mode=weighting.score_mode, score_length=weighting.score_length),
        ref_tok_counts=lengths,
        ref_logp_sum_raw=raw,
        ref_logp_mean=float(per_token[rows].sum()) / count,
        avg_completion_tokens=float(lengths[rows].double().sum()) / count,
        ref_token_logp=token_logp,
        ref_token_mask=mask,
    )


def sync_due(sync: ReferenceSync, step: int) -> bool:
    """Whether the reference moves after optimiser step ``step``; a frozen one (every_n_steps = 0) never does."""
    return sync.every_n_steps > 0 and step % sync.every_n_steps == 0


def sync_reference(reference: PreTrainedModel, policy: PreTrainedModel, sync: ReferenceSync, step: int) -> bool:
    """Move the reference towards the policy when ``step`` is due: mixing * policy + (1 - mixing) * reference.

    Returns whether it moved. A frozen reference (every_n_steps = 0) never does. Of adapters the configuration allows mixing = 1
    only, which takes the policy's over; weights that both models share stay as they are.
    """
    if not sync_due(sync, step):
        return False
    with torch.no_grad():
        for kept, new in zip(reference.parameters(), policy.parameters(), strict=True):
            if kept is not new:
                kept.lerp_(new.to(kept.dtype), sync.mixing)
    return True

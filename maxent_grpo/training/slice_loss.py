"""From the log-probabilities of a slice to its share of the step's loss, and what that share will ask of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maxent_grpo.objective.fused_head import Slopes
from maxent_grpo.objective.logprobs import sequence_sum
from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.training.foreseen import foreseen_slopes, slopes_are_known
from maxent_grpo.training.loss import SliceTargets, compute_loss
from maxent_grpo.training.method import Method
from maxent_grpo.training.optim import shared_loss
from maxent_grpo.training.scored_rows import FirstLook, ScoredRows
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.scoring.policy import TokenScorer, TokenScores
from maxent_grpo.training.targets import SequenceTargets, group_scores
from maxent_grpo.training.token_selection import TokenChoice
from maxent_grpo.training.types.rewards import LossOutputs, SequenceScores
from maxent_grpo.training.types.runtime import RuntimeHandles, ScoringSettings
from maxent_grpo.training.types.weighting import ControllerValues


@dataclass(frozen=True)
class SliceLoss:
    """From the log-probabilities of a slice to its share of the step's loss."""

    method: Method
    scoring: ScoringSettings
    scored: ScoredRows
    targets: SequenceTargets
    """Those of the scored groups."""
    look: FirstLook | None
    row_scores: Tensor
    """[n] scores of the scored completions: those of the first look, and of the others as slices come by."""
    values: ControllerValues
    counts: StepCounts
    chosen: TokenChoice | None

    def __call__(self, raw: TokenScores, piece: RowRange) -> tuple[SequenceScores, SliceTargets, LossOutputs]:
        """The slice's scores, targets and loss."""
        method, scoring = self.method, self.scoring
        scores = sequence_scores(raw, self.scored, piece, method)
        if self.look is None or not bool(self.look.rows[piece.slice].all()):
            self.row_scores[piece.slice] = _row_scores(scores, scoring)
        row_targets = _slice_targets(method, self.targets, self.row_scores, self.scored, piece, raw.logp, self.chosen)
        loss = compute_loss(
            scores, row_targets, method, scoring.weighting,
            score_mode=scoring.weighting.score_mode, kl_beta=self.values.kl_beta, counts=self.counts,
        )  # fmt: skip
        return scores, row_targets, loss

    def foreseen(self, piece: RowRange, passes: int, scorer: TokenScorer, runtime: RuntimeHandles) -> Slopes | None:
        """What the backward pass will ask of each of the slice's log-probs; None where that depends on them."""
        known = slopes_are_known(
            self.method, kl_beta=self.values.kl_beta, has_old=self.scored.old_logp is not None, passes=passes
        )
        if scorer.head is None or not known:
            return None

        def differentiated(raw: TokenScores) -> Tensor:
            return shared_loss(runtime.accelerator, self(raw, piece)[2].loss)

        shape = (len(piece), self.scored.tokens.completion_ids.shape[1])
        return foreseen_slopes(differentiated, scorer, shape, next(runtime.model.parameters()))


def sequence_scores(raw: TokenScores, rows: ScoredRows, piece: RowRange, method: Method) -> SequenceScores:
    """The slice's log-probs beside those of the behaviour policy, and their sums over trained tokens."""
    mask = rows.mask[piece.slice].to(raw.logp.device)
    old = behaviour_logp(raw.logp, rows, piece, method)
    current_sum, old_sum = sequence_sum(raw.logp, mask), sequence_sum(old, mask)
    return SequenceScores(
        cur_logp_sum=current_sum,
        behavior_logp_sum=old_sum,
        log_ratio_train=(current_sum - old_sum).detach(),
        denom_tok_tensor=mask.sum(dim=-1).clamp(min=1),
        pooled_hidden=raw.pooled_hidden,
        policy_entropy_sum=None if raw.entropy is None else sequence_sum(raw.entropy, mask),
        token_logp=raw.logp,
        token_mask=mask,
        old_token_logp=old,
        token_entropy=raw.entropy,
    )


def behaviour_logp(logp: Tensor, rows: ScoredRows, piece: RowRange, method: Method) -> Tensor:
    """[n, T] log-probs under the behaviour policy, beside those of the current one."""
    old = trainer_logp(logp, rows, piece)
    if method.ratio_from_sampler:
        known = rows.sampled_known[piece.slice].to(logp.device)
        # a token that came without a log-prob counts as on-policy: its ratio is 1
        old = torch.where(known, rows.sampled_logp[piece.slice].to(logp.device, logp.dtype), old)
    return old


def trainer_logp(logp: Tensor, rows: ScoredRows, piece: RowRange) -> Tensor:
    """[n, T] the trainer's log-probs pi_old, beside the current ones."""
    current = logp.detach()  # exactly on-policy unless something else is known
    if rows.old_logp is None:
        return current
    known = rows.old_known[piece.slice].unsqueeze(-1).to(logp.device)
    return torch.where(known, rows.old_logp[piece.slice].to(current), current)


def _row_scores(scores: SequenceScores, scoring: ScoringSettings) -> Tensor:
    assert scores.token_mask is not None
    lengths = scores.token_mask.sum(dim=-1)
    return group_scores(scores.cur_logp_sum, lengths, scoring.weighting, scoring.weighting.score_mode, 1).flatten()


def _slice_targets(
    method: Method,
    targets: SequenceTargets,
    row_scores: Tensor,
    scored: ScoredRows,
    piece: RowRange,
    like: Tensor,
    chosen: TokenChoice | None,
) -> SliceTargets:
    """The rows of the targets that a slice trains, of the device and type of its log-probs."""
    size = targets.group_size
    first, last = piece.first // size, -(-piece.last // size)
    inside = slice(piece.first - first * size, piece.last - first * size)
    groups = targets.groups(first, last)
    term = method.group_loss(groups, row_scores.view(-1, size)[first:last])
    part = groups.listwise_valid
    num_part = part.sum(dim=-1, keepdim=True).to(groups.advantages.dtype)
    baseline = torch.where(part, 1.0 / num_part.clamp(min=1), torch.zeros_like(groups.advantages))
    reference = scored.reference_logp
    known = scored.sampled_known[piece.slice].to(like.device)
    # a token that came without a log-prob is corrected by nothing: its mismatch is 0
    trainer = trainer_logp(like, scored, piece).to(like)

    def rows(values: Tensor) -> Tensor:
        return values.flatten()[inside].to(like)

    def tokens(mask: Tensor | None) -> Tensor | None:
        return None if mask is None else mask[piece.slice].to(like.device)

    return SliceTargets(
        advantages=rows(groups.advantages),
        reference_logp=None if reference is None else reference[piece.slice].to(like),
        sampled_logp=torch.where(known, scored.sampled_logp[piece.slice].to(like), trainer),
        listwise_value=rows((term.value / size).unsqueeze(-1).expand(-1, size)),
        listwise_coefficient=rows(term.coefficient),
        weights=rows(torch.where(part, groups.log_weights.exp(), torch.zeros_like(baseline))),
        weight_baseline=rows(baseline),
        trained_tokens=tokens(chosen.trained if chosen else None),
        held_tokens=tokens(chosen.held if chosen else None),
    )

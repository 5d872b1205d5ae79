"""Measurements of a step, gathered slice by slice as sums and counts, so that nobody averages averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch import Tensor

from maxent_grpo.distributed import gather_all
from maxent_grpo.objective.divergence import kl_k3, token_divergence
from maxent_grpo.objective.ratios import log_ratio
from maxent_grpo.objective.surrogate import clipped_tokens
from maxent_grpo.training.method import upper_clip
from maxent_grpo.training.types.rewards import BatchDiagnostics, LengthStats
from maxent_grpo.training.types.runtime import ClipSettings

LENGTH_BUCKETS = ((32, "0-32"), (64, "33-64"), (128, "65-128"), (256, "129-256"))
"""(longest completion, name) of each length bucket; longer ones fall into ``LONGEST_BUCKET``."""

LONGEST_BUCKET = "257+"


SUMMED = (
    "tokens",
    "clipped_low",
    "clipped_high",
    "ratio_sum",
    "behaviour_logp",
    "entropy",
    "entropy_tokens",
    "gap",
    "gap_tokens",
    "missing",
    "mismatch_raw",
    "mismatch_used",
    "mismatch_cut",
    "mismatch_k1",
    "mismatch_k3",
    "kl",
    "kl_tokens",
)
"""Fields of ``StepSums`` that add up over slices and processes."""


def length_bucket(tokens: int) -> str:
    """Name of the bucket of a completion of this many tokens."""
    return next((name for longest, name in LENGTH_BUCKETS if tokens <= longest), LONGEST_BUCKET)


@dataclass
class StepSums:
    """Sums over the trained tokens and sequences of a step; merged over slices, then over processes."""

    tokens: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    lowest_low: float = float("inf")
    highest_high: float = 0.0
    ratio_sum: float = 0.0
    behaviour_logp: float = 0.0
    ratio_max: float = 0.0
    entropy: float = 0.0
    entropy_tokens: float = 0.0
    gap: float = 0.0
    gap_tokens: float = 0.0
    """Trained tokens whose log-prob the sampler reported."""
    missing: float = 0.0
    """Trained tokens whose log-prob it did not."""
    mismatch_raw: float = 0.0
    raw_min: float = float("inf")
    raw_max: float = 0.0
    mismatch_used: float = 0.0
    mismatch_cut: float = 0.0
    mismatch_k1: float = 0.0
    mismatch_k3: float = 0.0
    kl: float = 0.0
    kl_tokens: float = 0.0
    kl_by_bucket: dict[str, float] = field(default_factory=dict)
    tokens_by_bucket: dict[str, float] = field(default_factory=dict)

    def add_policy(self, ratio: Tensor, mask: Tensor, advantages: Tensor, clip: ClipSettings) -> None:
        """Ratios at the method's level [n, T] and clip fractions of a slice; all arguments detached."""
        low, high = clipped_tokens(
            ratio, advantages.unsqueeze(-1).to(ratio).expand_as(ratio), mask, low=clip.clip_range, high=upper_clip(clip)
        )
        length = mask.sum(dim=-1).clamp(min=1)
        trained = mask.any(dim=-1)
        self.tokens += float(mask.sum())
        self.clipped_low += float(low.sum())
        self.clipped_high += float(high.sum())
        self.ratio_sum += float(torch.where(mask, ratio, torch.zeros_like(ratio)).sum())
        if bool(trained.any()):
            self.lowest_low = min(self.lowest_low, float((low.sum(dim=-1) / length)[trained].min()))
            self.highest_high = max(self.highest_high, float((high.sum(dim=-1) / length)[trained].max()))
            self.ratio_max = max(self.ratio_max, float(ratio[mask].max()))

    def add_behaviour(self, logp_sum: Tensor) -> None:
        """Log-probs of a slice's completions under the behaviour policy [n], summed over trained tokens."""
        self.behaviour_logp += float(logp_sum.sum())

    def add_entropy(self, entropy_sum: Tensor, mask: Tensor) -> None:
        """Token entropies of a slice's completions [n], summed over trained tokens."""
        self.entropy += float(entropy_sum.sum())
        self.entropy_tokens += float(mask.sum())

    def add_gap(self, trainer_logp: Tensor, sampled_logp: Tensor, known: Tensor, mask: Tensor) -> None:
        """Log-probs [n, T] of trainer and sampler at the same weights, where the sampler's are known, and where they are not."""
        gap = torch.where(known, sampled_logp - trainer_logp, torch.zeros_like(trainer_logp))
        log_weight = log_ratio(trainer_logp, sampled_logp, known)
        self.gap += float(gap.abs().sum())
        self.gap_tokens += float(known.sum())
        self.missing += float((mask & ~known).sum())
        self.mismatch_k1 += float(gap.sum())
        self.mismatch_k3 += float((torch.expm1(log_weight) - log_weight).sum())

    def add_mismatch(self, raw: Tensor, used: Tensor, known: Tensor) -> None:
        """Weights of the mismatch correction [n, T] before and after capping and masking; equal without a correction."""
        if not bool(known.any()):
            return
        self.mismatch_raw += float(raw[known].sum())
        self.mismatch_used += float(used[known].sum())
        self.mismatch_cut += float((used != raw)[known].sum())
        self.raw_min = min(self.raw_min, float(raw[known].min()))
        self.raw_max = max(self.raw_max, float(raw[known].max()))

    def add_kl(self, logp: Tensor, reference_logp: Tensor, mask: Tensor, lengths: Sequence[int]) -> None:
        """k3 to the reference of a slice, in all and by ``lengths``, those of the completions [tokens]."""
        k3 = kl_k3(token_divergence(logp, reference_logp, mask))
        rows = torch.where(mask, k3, torch.zeros_like(k3)).sum(dim=-1).tolist()
        tokens = mask.sum(dim=-1).tolist()
        self.kl += sum(rows)
        self.kl_tokens += sum(tokens)
        for value, count, length in zip(rows, tokens, lengths, strict=True):
            name = length_bucket(length)
            self.kl_by_bucket[name] = self.kl_by_bucket.get(name, 0.0) + value
            self.tokens_by_bucket[name] = self.tokens_by_bucket.get(name, 0.0) + count

    def merged(self, accelerator: Accelerator) -> StepSums:
        """The sums of all processes."""
        parts: list[StepSums] = gather_all(accelerator, self)
        total = StepSums()
        for part in parts:
            for name in SUMMED:
                setattr(total, name, getattr(total, name) + getattr(part, name))
            total.lowest_low = min(total.lowest_low, part.lowest_low)
            total.highest_high = max(total.highest_high, part.highest_high)
            total.ratio_max = max(total.ratio_max, part.ratio_max)
            total.raw_min = min(total.raw_min, part.raw_min)
            total.raw_max = max(total.raw_max, part.raw_max)
            for mine, theirs in (
                (total.kl_by_bucket, part.kl_by_bucket),
                (total.tokens_by_bucket, part.tokens_by_bucket),
            ):
                for name, value in theirs.items():
                    mine[name] = mine.get(name, 0.0) + value
        return total

    def diagnostics(self) -> BatchDiagnostics:
        """The step's diagnostics as shares and means."""
        tokens = max(self.tokens, 1.0)
        low, high = self.clipped_low / tokens, self.clipped_high / tokens
        return BatchDiagnostics(
            kl_value=self.kl / self.kl_tokens if self.kl_tokens else None,
            clip_ratio=low + high,
            clip_ratio_low_mean=low,
            clip_ratio_low_min=self.lowest_low if self.tokens else 0.0,
            clip_ratio_high_mean=high,
            clip_ratio_high_max=self.highest_high,
            clip_ratio_region_mean=low + high,
            kl_per_token_by_len_bucket={
                name: value / max(self.tokens_by_bucket[name], 1.0) for name, value in self.kl_by_bucket.items()
            },
            kl_token_count_by_len_bucket=dict(self.tokens_by_bucket),
        )


def length_stats(lengths: list[int], truncated: list[bool]) -> LengthStats:
    """Lengths of completions in tokens, the end token included, and the share cut by the limit."""
    ended = [length for length, cut in zip(lengths, truncated, strict=True) if not cut]
    return LengthStats(
        min_length=float(min(lengths)),
        mean_length=sum(lengths) / len(lengths),
        max_length=float(max(lengths)),
        clipped_ratio=sum(truncated) / len(truncated),
        min_terminated=float(min(ended, default=0)),
        mean_terminated=sum(ended) / len(ended) if ended else 0.0,
        max_terminated=float(max(ended, default=0)),
    )

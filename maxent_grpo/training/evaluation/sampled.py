"""Held-out rows answered by sampling: how often, and in how many ways, they are answered rightly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from maxent_grpo.distributed import any_rank, raising
from maxent_grpo.stats.passk import coverage_at_k, distinct_at_k, majority_at_k, mean_at_k, pass_at_k
from maxent_grpo.training.credit import GradedRollout, grade_rollout
from maxent_grpo.training.diagnostics import length_stats
from maxent_grpo.training.generation.rollout import collect_rollout
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord, ValidationContext
from maxent_grpo.training.types.runtime import GenerationFn
from maxent_grpo.training.types.samplers import VersionedSampler


@dataclass(frozen=True)
class EvaluatedRow:
    """The samples of one held-out row, and what else was asked about it."""

    row_id: str
    prompt: str
    completions: list[str]
    records: list[CompletionRecord]
    utilities: list[float]
    """nan where every reward term abstained; such a sample is not right."""
    modes: list[str | None]
    keys: list[str | None]
    num_modes: int | None
    """Right answers that the row is known to have."""
    right_threshold: float
    """A sample is right when its utility is at least this."""

    @property
    def right(self) -> list[bool]:
        """Which samples are right."""
        return [utility >= self.right_threshold for utility in self.utilities]

    @property
    def num_right(self) -> int:
        """Samples that are right."""
        return sum(self.right)

    @property
    def mode_counts(self) -> dict[str, int]:
        """How often each right answer was found, in the order in which they were."""
        found = [mode for mode, right in zip(self.modes, self.right, strict=True) if right and mode is not None]
        return dict(Counter(found))

    @property
    def right_keys(self) -> set[str]:
        """Answers that are right."""
        return {key for key, right in zip(self.keys, self.right, strict=True) if right and key is not None}

    @property
    def mean_reward(self) -> float:
        """Mean utility of the samples that have one; nan when none has."""
        return _mean([utility for utility in self.utilities if not math.isnan(utility)])

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sample, the end token included."""
        return [len(record.token_ids) for record in self.records]

    @property
    def truncated(self) -> list[bool]:
        """Which samples were cut by the length limit."""
        return [record.finish_reason is FinishReason.length for record in self.records]


def sample_rows(
    ctx: ValidationContext,
    generator: GenerationFn,
    rows: Sequence[dict[str, Any]],
    num_samples: int,
    rollout: int = 0,
) -> list[EvaluatedRow]:
    """``num_samples`` graded completions of each row of this process's share, in the rows' order; all processes call it.

    A local sampler's random numbers are keyed by rollout, row and sample: neither the batch size nor the order of the rows
    changes what is drawn, and another evaluation draws the same numbers.

    Raises:
        GenerationError: no process has a complete group of a batch, or a sampler gave up; on every process.
    """
    assert ctx.generation is not None
    assert ctx.scoring is not None
    settings, threshold = ctx.evaluation, ctx.scoring.weighting.right_threshold
    sampling = replace(ctx.generation, num_generations=num_samples)
    if isinstance(generator, VersionedSampler):
        generator.policy_version = ctx.state.global_step
        generator.begin_rollout(rollout)
    evaluated: list[EvaluatedRow] = []
    agree, raise_together = partial(any_rank, ctx.accelerator), raising(ctx.accelerator)
    for at in range(0, _longest_share(ctx, rows), settings.batch_size):
        part = rows[at : at + settings.batch_size]
        by_id = {row["row_id"]: row for row in part}
        batch = collect_rollout(part, generator, sampling, agree=agree, raise_together=raise_together)
        if batch.prompts:
            graded = grade_rollout(batch, by_id, ctx.eval_reward or ctx.reward, ctx.state)
            evaluated.extend(_evaluated(graded, by_id, threshold))
    return evaluated


def _longest_share(ctx: ValidationContext, rows: Sequence[dict[str, Any]]) -> int:
    """Rows of the process that has most: all of them ask equally often, since some samplers are asked by all at once."""
    processes = ctx.accelerator.num_processes
    return len(rows) if processes == 1 else -(-len(ctx.evaluation.rows) // processes)


def row_figures(row: EvaluatedRow, ks: Sequence[int]) -> dict[str, float]:
    """What one row's samples say, by name; coverage only where its right answers are known, reward where a sample has one."""
    samples, modes = len(row.utilities), list(row.mode_counts.values())
    figures: dict[str, float] = {} if math.isnan(row.mean_reward) else {"mean_reward": row.mean_reward}
    for k in ks:
        figures[f"pass@{k}"] = pass_at_k(samples, row.num_right, k)
        figures[f"maj@{k}"] = majority_at_k(row.keys, row.right_keys, k)
        figures[f"distinct@{k}"] = distinct_at_k(modes, samples, k)
        if row.num_modes:
            figures[f"coverage@{k}"] = coverage_at_k(modes, samples, k, row.num_modes)
    figures[f"mean@{samples}"] = mean_at_k(samples, row.num_right)
    return figures


def summarise(rows: Sequence[EvaluatedRow], ks: Sequence[int]) -> dict[str, float]:
    """Means over the rows that have a figure."""
    each = [row_figures(row, ks) for row in rows]
    names = dict.fromkeys(name for figures in each for name in figures)
    summary = {"rows": float(len(rows))}
    summary |= {name: _mean([figures[name] for figures in each if name in figures]) for name in names}
    abstained = sum(math.isnan(utility) for row in rows for utility in row.utilities)
    if abstained:
        summary["abstained"] = float(abstained)
    lengths = length_stats([n for row in rows for n in row.lengths], [cut for row in rows for cut in row.truncated])
    return summary | {"mean_length": lengths.mean_length, "clipped_ratio": lengths.clipped_ratio}


def _evaluated(graded: GradedRollout, by_id: dict[str, dict[str, Any]], right_threshold: float) -> list[EvaluatedRow]:
    size = graded.group_size
    rows = []
    for at in range(0, len(graded.records), size):
        here = slice(at, at + size)
        row_id = graded.records[at].row_id
        rows.append(
            EvaluatedRow(
                row_id=row_id,
                prompt=graded.pairs.prompts[at],
                completions=graded.pairs.completions[here],
                records=graded.records[here],
                utilities=graded.utilities[here],
                modes=[entry["mode"] for entry in graded.metadata[here]],
                keys=[entry["key"] for entry in graded.metadata[here]],
                num_modes=by_id[row_id].get("num_modes"),
                right_threshold=right_threshold,
            )
        )
    return rows


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan

"""Held-out evaluation: how often, and in how many ways, the policy answers problems it was not trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from maxent_grpo.distributed import gather_all
from maxent_grpo.stats.passk import coverage_at_k, distinct_at_k, mean_at_k, pass_at_k
from maxent_grpo.training.credit import GradedRollout, grade_rollout
from maxent_grpo.training.diagnostics import length_stats
from maxent_grpo.training.generation.rollout import collect_rollout
from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import ValidationContext
from maxent_grpo.training.types.runtime import VersionedSampler


@dataclass(frozen=True)
class EvaluatedRow:
    """The samples of one held-out row."""

    row_id: str
    utilities: list[float]
    modes: list[str | None]
    lengths: list[int]
    truncated: list[bool]
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
    def mode_counts(self) -> list[int]:
        """How often each right answer was found."""
        found = [mode for mode, right in zip(self.modes, self.right, strict=True) if right and mode is not None]
        return list(Counter(found).values())


def evaluate(ctx: ValidationContext) -> dict[str, float]:
    """Sample every held-out row and summarise: pass@k, distinct@k, coverage@k, mean reward, lengths.

    The sampler's random numbers are keyed by row and sample, so results do not depend on batch size or order, and are the
    same draws at every evaluation.
    """
    rows = evaluate_rows(ctx)
    return {f"eval/{name}": value for name, value in summarise(rows, ctx.evaluation.ks).items()}


def evaluate_rows(ctx: ValidationContext) -> list[EvaluatedRow]:
    """The samples of every held-out row, in order, graded by the evaluation's rewards."""
    settings, generation, scoring = ctx.evaluation, ctx.generation, ctx.scoring
    assert generation is not None
    assert scoring is not None
    sampling = replace(
        generation,
        num_generations=settings.num_samples,
        generation_stats=dict.fromkeys(generation.generation_stats, 0),
    )
    if isinstance(ctx.generator, VersionedSampler):
        ctx.generator.begin_rollout(0)
    shard = settings.rows[ctx.accelerator.process_index :: ctx.accelerator.num_processes]
    rows: list[EvaluatedRow] = []
    for at in range(0, len(shard), settings.batch_size):
        part = shard[at : at + settings.batch_size]
        by_id = {row["row_id"]: row for row in part}
        batch = collect_rollout(part, ctx.generator, sampling)
        graded = grade_rollout(batch, by_id, ctx.eval_reward or ctx.reward)
        rows.extend(_evaluated(graded, by_id, scoring.weighting.right_threshold))
    order = {row["row_id"]: place for place, row in enumerate(settings.rows)}
    everywhere = [row for part in gather_all(ctx.accelerator, rows) for row in part]
    return sorted(everywhere, key=lambda row: order[row.row_id])


def summarise(rows: Sequence[EvaluatedRow], ks: Sequence[int]) -> dict[str, float]:
    """Means over rows; coverage over the rows whose right answers are known."""
    figures: dict[str, float] = {"mean_reward": _mean([_mean(row.utilities) for row in rows]), "rows": float(len(rows))}
    known = [row for row in rows if row.num_modes]
    for k in ks:
        figures[f"pass@{k}"] = _mean([pass_at_k(len(row.utilities), row.num_right, k) for row in rows])
        figures[f"distinct@{k}"] = _mean([distinct_at_k(row.mode_counts, len(row.utilities), k) for row in rows])
        if known:
            figures[f"coverage@{k}"] = _mean(
                [coverage_at_k(row.mode_counts, len(row.utilities), k, row.num_modes or 0) for row in known]
            )
    samples = len(rows[0].utilities)
    figures[f"mean@{samples}"] = _mean([mean_at_k(samples, row.num_right) for row in rows])
    lengths = length_stats([n for row in rows for n in row.lengths], [cut for row in rows for cut in row.truncated])
    figures["mean_length"], figures["clipped_ratio"] = lengths.mean_length, lengths.clipped_ratio
    return figures


def _evaluated(graded: GradedRollout, by_id: dict[str, dict[str, Any]], right_threshold: float) -> list[EvaluatedRow]:
    size = graded.group_size
    rows = []
    for at in range(0, len(graded.records), size):
        records, metadata = graded.records[at : at + size], graded.metadata[at : at + size]
        row = by_id[records[0].row_id]
        rows.append(
            EvaluatedRow(
                row_id=records[0].row_id,
                utilities=graded.utilities[at : at + size],
                modes=[entry["mode"] for entry in metadata],
                lengths=[len(record.token_ids) for record in records],
                truncated=[record.finish_reason is FinishReason.length for record in records],
                num_modes=row.get("num_modes"),
                right_threshold=right_threshold,
            )
        )
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

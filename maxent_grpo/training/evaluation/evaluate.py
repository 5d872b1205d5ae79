"""One evaluation of the policy on the held-out rows: sampled, greedy, exact and under seed tags, as set up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from maxent_grpo.distributed import gather_all, together
from maxent_grpo.training.evaluation.exact import exact_rows, summarise_exact
from maxent_grpo.training.evaluation.sampled import EvaluatedRow, sample_rows, summarise
from maxent_grpo.training.evaluation.seeds import SeedAnswers, answer_under_seeds, summarise_seeds
from maxent_grpo.training.types.rewards import ValidationContext


def evaluate(ctx: ValidationContext, step: int) -> dict[str, float]:
    """The figures of an evaluation at optimiser step ``step``; each row's part goes to the writers of ``ctx.logging``.

    Figures depend on weights and rows alone: neither on batch size and order, nor on what training has drawn, and each
    evaluation draws the same random numbers.
    """
    ctx = replace(ctx, state=replace(ctx.state, global_step=step))
    with nullcontext() if ctx.runtime is None else ctx.runtime.whole():
        return _evaluated(ctx, step)


def _evaluated(ctx: ValidationContext, step: int) -> dict[str, float]:
    shard = ctx.evaluation.rows[ctx.accelerator.process_index :: ctx.accelerator.num_processes]
    rows = _everywhere(ctx, partial(evaluate_rows, ctx, shard))
    figures = {f"eval/{name}": value for name, value in summarise(rows, ctx.evaluation.ks).items()}
    greedy: dict[str, EvaluatedRow] = {}
    if ctx.greedy_generator is not None:
        answers = _everywhere(ctx, partial(sample_rows, ctx, ctx.greedy_generator, shard, 1))
        greedy = {row.row_id: row for row in answers}
        figures["eval/greedy"] = sum(row.num_right for row in answers) / len(answers)
    exact: dict[str, dict[str, float]] = {}
    if ctx.exact is not None:
        mine = exact_rows(ctx, ctx.exact, shard)
        exact = {row_id: part for parts in gather_all(ctx.accelerator, mine) for row_id, part in parts.items()}
        summary = summarise_exact([exact[row["row_id"]] for row in ctx.evaluation.rows])
        figures |= {f"eval/exact/{name}": value for name, value in summary.items()}
    if ctx.seeds is not None:
        ours = {row["row_id"] for row in shard}
        tagged = _everywhere(ctx, partial(answer_under_seeds, ctx, ctx.seeds, ours.__contains__))
        figures |= {f"eval/seed/{name}": value for name, value in summarise_seeds(tagged).items()}
    ctx.logging.write_evaluation(step, [row_record(row, greedy.get(row.row_id), exact.get(row.row_id)) for row in rows])
    return figures


def evaluate_rows(ctx: ValidationContext, rows: list[dict[str, Any]]) -> list[EvaluatedRow]:
    """The samples of some held-out rows, in order, graded by the evaluation's rewards."""
    return sample_rows(ctx, ctx.generator, rows, ctx.evaluation.num_samples)


def row_record(row: EvaluatedRow, greedy: EvaluatedRow | None, exact: dict[str, float] | None) -> dict[str, Any]:
    """A row's line of evaluations.jsonl."""
    return {
        "row_id": row.row_id,
        "num_samples": len(row.utilities),
        "num_right": row.num_right,
        "mode_counts": row.mode_counts,
        "num_modes": row.num_modes,
        "mean_reward": row.mean_reward,
        "mean_length": sum(row.lengths) / len(row.lengths),
        "greedy_right": None if greedy is None else greedy.right[0],
        "greedy_completion": None if greedy is None else greedy.completions[0],
        "exact": exact,
    }


def _everywhere(ctx: ValidationContext, sample: Callable[[], list[Any]]) -> list[Any]:
    """The rows that all processes sample, in the order of the held-out rows, on every process."""
    mine = together(ctx.accelerator, sample)
    order = {row["row_id"]: place for place, row in enumerate(ctx.evaluation.rows)}
    everywhere: list[EvaluatedRow | SeedAnswers] = [row for part in gather_all(ctx.accelerator, mine) for row in part]
    return sorted(everywhere, key=lambda row: order[row.row_id])

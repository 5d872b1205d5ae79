"""Do seeds in the prompt become different answers? Each held-out prompt is asked again under several seed tags."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maxent_grpo.objective.logprobs import sequence_sum
from maxent_grpo.stats.passk import pass_at_k
from maxent_grpo.stats.probe import probe_accuracy
from maxent_grpo.training.evaluation.sampled import EvaluatedRow, sample_rows
from maxent_grpo.training.forward import evaluation_mode
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch, sampled_logp_tensor
from maxent_grpo.training.scoring.policy import TokenScorer
from maxent_grpo.training.types.rewards import SequenceScores, ValidationContext
from maxent_grpo.training.types.runtime import GenerationFn

ROWS_PER_PASS = 16
"""Prompts whose completions are scored in one forward pass [prompts]."""


@dataclass
class SeedEvaluation:
    """The tagged prompts, who answers them, and who scores the answers."""

    rows_by_seed: list[list[dict[str, Any]]]
    """The held-out rows once for every seed, with the seed's tag in their prompts."""
    generator: GenerationFn
    """Each seed is a rollout of its own, so that seeds draw independent random numbers."""
    scorer: TokenScorer
    """Pools hidden states."""
    pad_token_id: int


@dataclass(frozen=True)
class SeedAnswers:
    """One held-out row under every seed."""

    row_id: str
    by_seed: list[EvaluatedRow]
    hidden: list[NDArray[np.float32]]
    """Of each seed, one vector a completion [samples, D]."""

    @property
    def found_share(self) -> float | None:
        """Share of the row's right answers found under all seeds together; None where they are not known."""
        num_modes = self.by_seed[0].num_modes
        return len({mode for row in self.by_seed for mode in row.mode_counts}) / num_modes if num_modes else None


def answer_under_seeds(
    ctx: ValidationContext, seeds: SeedEvaluation, is_mine: Callable[[str], bool]
) -> list[SeedAnswers]:
    """Sample, grade and pool the rows that this process has, under each seed."""
    settings = ctx.evaluation.seed_eval
    assert settings is not None
    answered: dict[str, list[EvaluatedRow]] = {}
    hidden: dict[str, list[NDArray[np.float32]]] = {}
    for seed, tagged in enumerate(seeds.rows_by_seed):
        mine = [row for row in tagged if is_mine(row["row_id"])]
        rows = sample_rows(ctx, seeds.generator, mine, settings["samples_per_seed"], rollout=seed)
        # in the order of their ids, so that what is run together does not depend on the order of the rows
        rows = sorted(rows, key=lambda row: row.row_id)
        for at in range(0, len(rows), ROWS_PER_PASS):
            part = rows[at : at + ROWS_PER_PASS]
            pooled = score_samples(ctx, seeds, part).pooled_hidden
            assert pooled is not None, "the scorer of a seed evaluation pools"
            states = pooled.cpu().numpy().reshape(len(part), settings["samples_per_seed"], -1)
            for row, vectors in zip(part, states, strict=True):
                answered.setdefault(row.row_id, []).append(row)
                hidden.setdefault(row.row_id, []).append(vectors)
    whole = [row_id for row_id, under in answered.items() if len(under) == len(seeds.rows_by_seed)]
    return [SeedAnswers(row_id, answered[row_id], hidden[row_id]) for row_id in whole]


@torch.no_grad()
def score_samples(ctx: ValidationContext, seeds: SeedEvaluation, rows: Sequence[EvaluatedRow]) -> SequenceScores:
    """The rows' completions under the policy, with their hidden states pooled."""
    assert ctx.generation is not None
    records = [row.records for row in rows]
    batch = build_score_batch(
        [row.prompt for row in rows],
        records,
        seeds.scorer.batching,
        pad_token_id=seeds.pad_token_id,
        max_prompt_len=ctx.generation.max_prompt_len,
    )
    mask = batch.completion_attention_mask
    with evaluation_mode(ctx.model):
        chunks = seeds.scorer.assemble(batch, RowRange(0, batch.total_sequences), next(ctx.model.parameters()).dtype)
        raw = seeds.scorer.score(ctx.model, chunks, mask.shape[1])
    sampled, _ = sampled_logp_tensor(batch, [record for group in records for record in group])
    current, drawn = sequence_sum(raw.logp.cpu().double(), mask), sequence_sum(sampled, mask)
    return SequenceScores(
        cur_logp_sum=current,
        behavior_logp_sum=drawn,
        log_ratio_train=current - drawn,
        denom_tok_tensor=mask.sum(dim=-1).clamp(min=1),
        pooled_hidden=raw.pooled_hidden,
    )


def summarise_seeds(rows: Sequence[SeedAnswers]) -> dict[str, float]:
    """pass@1 per seed with mean and spread, modes found over seeds, and how well seeds can be told apart."""
    num_seeds = len(rows[0].by_seed)
    by_seed = [_mean([_pass_at_1(row.by_seed[seed]) for row in rows]) for seed in range(num_seeds)]
    mean = _mean(by_seed)
    figures = {f"pass@1/{seed}": value for seed, value in enumerate(by_seed)}
    figures["pass@1"] = mean
    figures["pass@1_std"] = math.sqrt(_mean([(value - mean) ** 2 for value in by_seed]))
    found = [row.found_share for row in rows if row.found_share is not None]
    if found:
        figures["coverage"] = _mean(found)
    if len(rows) > 1:
        figures["probe_accuracy"] = seed_probe(rows)
        figures["probe_chance"] = 1.0 / num_seeds
    return figures


def seed_probe(rows: Sequence[SeedAnswers]) -> float:
    """Accuracy of a linear probe that reads the seed from a completion's pooled hidden state.

    The rows are halved by the order of their ids; each half is answered by a probe fitted to the other, so that no prompt
    is in both.
    """
    features, labels, fold = [], [], []
    for place, row in enumerate(sorted(rows, key=lambda row: row.row_id)):
        for seed, states in enumerate(row.hidden):
            features.append(states)
            labels += [seed] * len(states)
            fold += [place % 2] * len(states)
    return probe_accuracy(np.concatenate(features), labels, fold)


def _pass_at_1(row: EvaluatedRow) -> float:
    return pass_at_k(len(row.utilities), row.num_right, 1)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

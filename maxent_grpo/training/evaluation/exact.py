"""Held-out figures without sampling noise, from the probability of every answer there is.

Views of one policy. It spreads its probability over all sequences of the vocabulary, and the listed answers hold a part
of it. Figures count what lies outside as wrong; those under ``within/`` renormalise over the listed answers. Where sampling is
restricted to some tokens, those under ``sampled/`` are of the policy that is sampled from: every token drawn from these alone,
what is not a listed answer wrong. They are what sampled figures at temperature 1 are estimates of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from maxent_grpo.errors import DataError
from maxent_grpo.objective.head_distribution import HeadTransform
from maxent_grpo.objective.optimum import divergence_from_optimum, optimal_log_policy
from maxent_grpo.stats.passk import (
    distinct_at_k_from_probabilities,
    effective_modes,
    mode_entropy_ratio,
    pass_at_k_from_probabilities,
)
from maxent_grpo.training.credit import grade_rollout
from maxent_grpo.training.forward import evaluation_mode
from maxent_grpo.training.scoring.enumeration import score_answers
from maxent_grpo.training.types.choices import FinishReason, ScoreMode
from maxent_grpo.training.types.rewards import CompletionRecord, GenerationBatch, ValidationContext
from maxent_grpo.training.types.weighting import WeightingSettings

WITHIN = "within/"
SAMPLED = "sampled/"
OF_SAMPLED = ("outside_mass", "kl_to_optimum", "pass@", "distinct@", "coverage@", "effective_modes", "mode_entropy")
"""Beginnings of the figures that are given of the sampled policy too."""


@dataclass(frozen=True)
class AnswerTable:
    """Every answer to one row with its grade; nothing in it changes while a run goes on."""

    token_ids: list[list[int]]
    """End token included."""
    utilities: Tensor
    """[A] float64; nan where every reward term abstained."""
    modes: list[str | None]
    num_modes: int | None


@dataclass
class ExactEvaluation:
    """What exact figures need beside the policy; answers are graded once, at the first evaluation."""

    list_answers: Callable[[str], list[str]]
    """From a row's answer column to the texts of all answers."""
    token_of: Mapping[str, int]
    """Token of each character that answers are made of."""
    eos_token_id: int
    pad_token_id: int
    reference_moves: bool
    """The reference is scored anew at every evaluation."""
    head: HeadTransform | None = None
    """What policy and reference do to the products of their output matrix; None takes their own logits."""
    sampled_ids: Tensor | None = None
    """Tokens that sampling is restricted to, end tokens included, ascending; None where it is not."""
    tables: dict[str, AnswerTable] = field(default_factory=dict)
    reference_logp: dict[str, Tensor] = field(default_factory=dict)

    def table(self, ctx: ValidationContext, row: dict[str, Any]) -> AnswerTable:
        """The graded answers of a row."""
        if row["row_id"] not in self.tables:
            self.tables[row["row_id"]] = self._graded(ctx, row)
        return self.tables[row["row_id"]]

    def _graded(self, ctx: ValidationContext, row: dict[str, Any]) -> AnswerTable:
        texts = self.list_answers(row["answer"])
        unknown = sorted({letter for text in texts for letter in text} - self.token_of.keys())
        if unknown:
            raise DataError(
                f"the answers of row {row['row_id']} hold {unknown}, which are not in the task's answer alphabet, so their "
                "probabilities are unknown: mend the dataset, or set evaluation.exact=never"
            )
        ids = [[*(self.token_of[letter] for letter in text), self.eos_token_id] for text in texts]
        records: list[Any] = [CompletionRecord(row["row_id"], tokens, None, FinishReason.eos, 0) for tokens in ids]
        batch = GenerationBatch([row["prompt"]], [row["answer"]], [texts], [records])
        graded = grade_rollout(batch, {row["row_id"]: row}, ctx.eval_reward or ctx.reward, ctx.state)
        return AnswerTable(
            token_ids=ids,
            utilities=torch.tensor(graded.utilities, dtype=torch.float64),
            modes=[entry["mode"] for entry in graded.metadata],
            num_modes=row.get("num_modes"),
        )


def exact_rows(
    ctx: ValidationContext, exact: ExactEvaluation, rows: Sequence[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """The exact figures of each row, by row id."""
    assert ctx.scoring is not None
    assert ctx.runtime is not None
    tables = [exact.table(ctx, row) for row in rows]
    policy = _scores(ctx, exact, ctx.model, rows, tables)
    sampled = policy if exact.sampled_ids is None else _scores(ctx, exact, ctx.model, rows, tables, exact.sampled_ids)
    reference_model = ctx.runtime.reference_model
    if exact.reference_moves:
        exact.reference_logp.clear()
    weighting = ctx.scoring.weighting
    if weighting.beta > 0 and reference_model is not None:
        new = [
            (row, table) for row, table in zip(rows, tables, strict=True) if row["row_id"] not in exact.reference_logp
        ]
        scored = _scores(ctx, exact, reference_model, [row for row, _ in new], [table for _, table in new])
        exact.reference_logp |= {row["row_id"]: logp for (row, _), logp in zip(new, scored, strict=True)}
    found: dict[str, dict[str, float]] = {}
    for row, table, log_policy, log_sampled in zip(rows, tables, policy, sampled, strict=True):
        figures = partial(
            exact_figures,
            table=table,
            ks=ctx.evaluation.ks,
            right_threshold=weighting.right_threshold,
            log_optimum=log_optimum(table, weighting, exact.reference_logp.get(row["row_id"])),
        )
        found[row["row_id"]] = figures(log_policy)
        if exact.sampled_ids is not None:
            of_sampled = figures(log_sampled).items()
            found[row["row_id"]] |= {
                f"{SAMPLED}{name}": value for name, value in of_sampled if name.startswith(OF_SAMPLED)
            }
    return found


def _scores(
    ctx: ValidationContext,
    exact: ExactEvaluation,
    model: Any,
    rows: Sequence[dict[str, Any]],
    tables: Sequence[AnswerTable],
    allowed: Tensor | None = None,
) -> list[Tensor]:
    """log pi(y | x) of every answer of every row, over the whole vocabulary or the allowed tokens."""
    if not rows:
        return []
    lookup = ctx.runtime.prompt_cache_get if ctx.runtime is not None else None
    assert lookup is not None
    prompts = [lookup(row["prompt"]).input_ids for row in rows]
    with evaluation_mode(model):
        return score_answers(
            model, prompts, [table.token_ids for table in tables], exact.pad_token_id, exact.head, allowed
        )


def log_optimum(table: AnswerTable, weighting: WeightingSettings, log_reference: Tensor | None) -> Tensor | None:
    """Log of the closed-form optimum over a row's answers [A]; None where it is unknown.

    Temperature and pull are ``scoring.weighting``'s for every method, also one without a listwise term, so that figures of
    different methods compare. It is unknown with beta > 0 and no reference, with a score per token where lengths differ (no
    Boltzmann law then), and where no answer has a utility.
    """
    valid = ~table.utilities.isnan()
    if not bool(valid.any()) or (weighting.beta > 0 and log_reference is None):
        return None
    score_length = 1.0
    if weighting.score_mode is ScoreMode.const:
        score_length = float(weighting.score_length)
    elif weighting.score_mode is ScoreMode.mean:
        lengths = {len(tokens) for tokens in table.token_ids}
        if len(lengths) > 1:
            return None
        score_length = float(lengths.pop())
    reference = torch.zeros_like(table.utilities) if log_reference is None else log_reference
    return optimal_log_policy(
        table.utilities.nan_to_num(0.0).unsqueeze(0),
        reference.unsqueeze(0),
        valid.unsqueeze(0),
        tau=weighting.tau,
        beta=weighting.beta,
        q_temperature=weighting.q_temperature,
        score_length=score_length,
    ).squeeze(0)


def exact_figures(
    log_policy: Tensor,
    table: AnswerTable,
    ks: Sequence[int],
    *,
    right_threshold: float,
    log_optimum: Tensor | None,
) -> dict[str, float]:
    """The figures of one row from log pi(y | x) of all its answers [A]."""
    log_mass = float(torch.logsumexp(log_policy, dim=0))
    figures = {"outside_mass": -math.expm1(log_mass)}
    if log_optimum is not None:
        divergence = float(divergence_from_optimum(log_optimum.unsqueeze(0), log_policy.unsqueeze(0)))
        # renormalising adds a constant to log pi
        figures |= {"kl_to_optimum": divergence, f"{WITHIN}kl_to_optimum": divergence + log_mass}
    for view, shift in (("", 0.0), (WITHIN, log_mass)):
        pi = (log_policy - shift).exp().tolist()
        right = [p for p, utility in zip(pi, table.utilities.tolist(), strict=True) if utility >= right_threshold]
        masses = list(_mode_masses(pi, table, right_threshold).values())
        for k in ks:
            figures[f"{view}pass@{k}"] = pass_at_k_from_probabilities(right, k)
            figures[f"{view}distinct@{k}"] = distinct_at_k_from_probabilities(masses, k)
            if table.num_modes:
                figures[f"{view}coverage@{k}"] = figures[f"{view}distinct@{k}"] / table.num_modes
    masses = list(_mode_masses((log_policy - log_mass).exp().tolist(), table, right_threshold).values())
    figures["effective_modes"] = effective_modes(masses)
    if any(masses):
        figures["mode_entropy"] = math.log(figures["effective_modes"])
        if table.num_modes and table.num_modes > 1:
            figures["mode_entropy_ratio"] = mode_entropy_ratio(masses, table.num_modes)
    return figures


def summarise_exact(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure over the rows that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _mean([row[name] for row in rows if name in row]) for name in names}


def _mode_masses(pi: Sequence[float], table: AnswerTable, right_threshold: float) -> dict[str, float]:
    masses: dict[str, float] = {}
    for p, utility, mode in zip(pi, table.utilities.tolist(), table.modes, strict=True):
        if mode is not None and utility >= right_threshold:
            masses[mode] = masses.get(mode, 0.0) + p
    return masses


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

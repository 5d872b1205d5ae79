"""Small inputs for the complaints in ``tests/peers``: rows at ratio 1, graded rollouts by hand, and graders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from support.steps import Step, StepResult, run_step, settings_for

from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.rewards.registry import RewardTerm
from maxent_grpo.training.credit import GradedRollout, ScoredTokens, assign_credit, grade_rollout
from maxent_grpo.training.loss import SliceTargets
from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.types.choices import FinishReason, ScoreMode
from maxent_grpo.training.types.rewards import CompletionRecord, GenerationBatch, RewardComputation
from maxent_grpo.training.types.runtime import RewardSpec

LENGTHS, ADVANTAGES = [1, 2, 3, 6], [1.0, -1.0, 2.0, 0.5]
"""The batch of most complaints about scale: token mean 2/3, sequence mean 0.625, over a constant length of 8 0.25."""


def one(completions: Sequence[str]) -> list[float]:
    """Everything is worth 1."""
    return [1.0 for _ in completions]


def zero(completions: Sequence[str]) -> list[float]:
    """Nothing is worth anything."""
    return [0.0 for _ in completions]


def alone(term: str) -> dict[str, Any]:
    """Settings that make a function of ``support.graders`` the one reward term there is."""
    return {"reward.terms": {term: 1.0}, "reward.functions": {term: f"support.graders:{term}"}}


def step_of_lengths(lengths: Sequence[int], *, masked: Sequence[int] = (), drift: float = 0.0) -> Step:
    """One group of rows of these lengths, all log-ratios ``drift``; ``masked`` rows train no token."""
    width = max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(-1)
    mask[list(masked)] = False
    logp = -torch.ones(len(lengths), width, dtype=torch.float64)
    valid = torch.ones(1, len(lengths), dtype=torch.bool)
    valid[0, list(masked)] = False
    keys = torch.arange(len(lengths)).unsqueeze(0)
    old = logp - drift
    return Step(
        valid.double(), valid, valid, mask, logp, old, old, old, torch.zeros_like(logp), keys, torch.zeros_like(logp)
    )


def row_targets(advantages: Sequence[float]) -> SliceTargets:
    """The advantages and nothing else."""
    nothing = torch.zeros(len(advantages), dtype=torch.float64)
    return SliceTargets(torch.tensor(advantages, dtype=torch.float64), None, None, nothing, nothing, nothing, nothing)


def policy_term(
    step: Step,
    advantages: Sequence[float],
    method: str = "dr_grpo",
    *,
    cuts: Sequence[int] = (),
    counts: StepCounts | None = None,
    **changes: Any,
) -> StepResult:
    """The step under a method with T_max = 8, cut into slices before each of ``cuts``."""
    settings = settings_for(method, **changes)
    return run_step(step, settings, cuts=cuts, targets=row_targets(advantages), counts=counts)


def record(row_id: str, logp: Sequence[float | None] = (-1.0, -1.0)) -> CompletionRecord:
    """A completion of one token for each log-probability."""
    return CompletionRecord(row_id, [5] * len(logp), list(logp), FinishReason.eos, 0)


def graded_rewards(groups: dict[str, list[float | None]], **columns: Any) -> GradedRollout:
    """A rollout of one group a row, graded by a term that gives each completion its number, or abstains.

    A completion's text is the row's name and its place in the group.
    """
    rewards = {f"{name}#{place}": value for name, group in groups.items() for place, value in enumerate(group)}

    def given(completions: Sequence[str]) -> list[float | None]:
        return [rewards[text] for text in completions]

    batch = GenerationBatch(
        list(groups),
        [""] * len(groups),
        [[f"{name}#{place}" for place in range(len(group))] for name, group in groups.items()],
        [[record(name) for _ in group] for name, group in groups.items()],
    )
    rows = {name: {"row_id": name, **columns} for name in groups}
    return grade_rollout(batch, rows, RewardSpec([RewardTerm("given", given)], [1.0]))


def credit_of(graded: GradedRollout, method: str = "dr_grpo", **changes: Any) -> RewardComputation:
    """The credit that a method assigns to a graded rollout of completions of two tokens."""
    settings = settings_for(method, **changes)
    resolved = resolve_method(settings, score_mode=ScoreMode.sum, max_completion_len=8)
    shape = (len(graded.records), 2)
    all_of_them = torch.ones(shape, dtype=torch.bool)
    tokens = ScoredTokens(all_of_them, all_of_them, -torch.ones(shape), all_of_them)
    return assign_credit(graded, settings, resolved, tokens)

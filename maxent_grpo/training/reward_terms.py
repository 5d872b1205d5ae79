"""The reward of a run, from its configuration: terms with their weights, and the processes that give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maxent_grpo.config.root import RootConfig
from maxent_grpo.errors import ConfigError, RewardError
from maxent_grpo.rewards.batch import RewardBatch, columns_of, conversations_of
from maxent_grpo.rewards.registry import CallSettings, TermSettings, build_terms, term_recipes
from maxent_grpo.rewards.terms import RewardTerm
from maxent_grpo.rewards.workers import RewardWorkers
from maxent_grpo.tasks.base import Task
from maxent_grpo.tasks.lazy_rows import sample_places
from maxent_grpo.training.types.choices import OnBadRow, OnRewardError
from maxent_grpo.training.types.runtime import RewardSpec

Rows = Sequence[Mapping[str, Any] | None]
"""Rendered rows; None where the length limit drops one that is rendered only when it is drawn."""
ROWS_ASKED = 64
"""Rows, evenly spread, among which a column that a reward function asks for is looked for: the sources of a mixture differ."""


def build_rewards(config: RootConfig, task: Task, rows: Rows = ()) -> RewardSpec:
    """The reward terms with their weights.

    Args:
        config: the run's.
        task: grades its own problems.
        rows: what is trained on, whose columns reward functions may ask for; empty where that is not known.

    Raises:
        ConfigError: a reward function cannot be found, or asks for what no row has.
    """
    reward = config.reward
    policies = dict(reward.on_error)
    if getattr(config.data, "on_bad_row", None) is OnBadRow.skip:
        # a right answer that turns out to be unreadable only when its row is drawn is left out as well, and counted
        policies = {"task": OnRewardError.abstain} | policies
    abstaining = frozenset(name for name, policy in policies.items() if policy is OnRewardError.abstain)
    calls = CallSettings(reward.functions, reward.styles, abstaining, reward.time_limits)
    settings = TermSettings(
        reward.format, reward.numeric, reward.regex, reward.length, reward.overlong, reward.repetition,
        max_completion_len=config.generation.max_completion_len,
        assistant_prefix=config.data.assistant_prefix,
        answer_in=config.data.answer_in.value,
    )  # fmt: skip
    terms = build_terms(reward.terms, calls, task.grade, settings)
    _require_columns(config, terms, rows)
    workers = None
    if reward.workers > 0:
        grade = getattr(task, "sent_grader", None)
        workers = RewardWorkers(reward.workers, term_recipes(reward.terms, calls, grade, settings))
    return RewardSpec(terms, list(reward.terms.values()), reward.normalize, reward.normalize_by, workers)


def _require_columns(config: RootConfig, terms: Sequence[RewardTerm], rows: Rows) -> None:
    """Refuse functions that could not be called, before anything is sampled for them."""
    own = [term for term in terms if not term.is_built_in]
    if not own:
        return
    asked = [row for place in sample_places(len(rows), ROWS_ASKED) if (row := rows[place]) is not None]
    if not asked:
        return
    texts = [""] * len(asked)
    batch = RewardBatch(texts, texts, [[] for _ in asked], columns_of(asked), conversations_of(asked))
    problems: list[str] = []
    for term in own:
        try:
            term.require_arguments(batch)
        except RewardError as error:
            path = f"reward.functions.{term.name}"
            problems.append(f"{path}={config.reward.functions[term.name]}: {error}")
    if problems:
        raise ConfigError(problems)

"""The reward of a run, from its configuration: terms with their weights, and the processes that give them."""

from __future__ import annotations

from maxent_grpo.config.root import RootConfig
from maxent_grpo.rewards.registry import CallSettings, TermSettings, build_terms, term_recipes
from maxent_grpo.rewards.workers import RewardWorkers
from maxent_grpo.tasks.base import Task
from maxent_grpo.training.types.choices import OnBadRow, OnRewardError
from maxent_grpo.training.types.runtime import RewardSpec


def build_rewards(config: RootConfig, task: Task) -> RewardSpec:
    """The reward terms with their weights."""
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
    workers = None
    if reward.workers > 0:
        grade = getattr(task, "sent_grader", None)
        workers = RewardWorkers(reward.workers, term_recipes(reward.terms, calls, grade, settings))
    return RewardSpec(terms, list(reward.terms.values()), reward.normalize, reward.normalize_by, workers)

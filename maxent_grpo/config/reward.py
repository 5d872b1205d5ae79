"""`reward`: which terms make a completion's utility."""

from dataclasses import dataclass, field

from maxent_grpo.training.types.choices import OnRewardError


@dataclass(slots=True)
class RewardConfig:
    """The utility is the weighted sum of named terms."""

    terms: dict[str, float] = field(default_factory=dict[str, float])
    """Weight of each term by name: `task` (the task's own grader), `format`, `exact`, or a name of reward.functions."""
    functions: dict[str, str] = field(default_factory=dict[str, str])
    """Your own terms: name to `package.module:function`, called as f(prompts, completions, **columns)."""
    on_error: dict[str, OnRewardError] = field(default_factory=dict[str, OnRewardError])
    """What an exception inside a term does: `stop` the run (the default) or `abstain`, which leaves the row out and counts it."""


@dataclass(slots=True)
class TaskRewardConfig(RewardConfig):
    """The task's own grader with weight 1."""

    terms: dict[str, float] = field(default_factory=lambda: {"task": 1.0})

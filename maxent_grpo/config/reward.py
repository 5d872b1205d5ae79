"""`reward`: which terms make a completion's utility."""

from dataclasses import dataclass, field

from maxent_grpo.rewards.term_settings import (
    FormatSettings,
    FormatStyle,
    FunctionStyle,
    LengthSettings,
    NumericSettings,
    OverlongSettings,
    RegexSettings,
    RepetitionSettings,
)
from maxent_grpo.training.types.choices import NormalizeBy, OnRewardError, RewardNormalization


@dataclass(slots=True)
class RewardConfig:
    """The utility is the weighted sum of named terms. See docs/rewards.md."""

    terms: dict[str, float] = field(default_factory=dict[str, float])
    """Weight of each term by name: `task` (the task's own grader), `exact`, `numeric`, `choice`, `math`, `format`, `regex`, `length`, `overlong`, `repetition`, or a name of reward.functions."""
    functions: dict[str, str] = field(default_factory=dict[str, str])
    """Your own terms: name to `package.module:function` or `folder/file.py:function`, called as f(prompts, completions, completion_ids, **columns) or as compute_score(data_source, solution_str, ground_truth, extra_info)."""
    styles: dict[str, FunctionStyle] = field(default_factory=dict[str, FunctionStyle])
    """How a function of yours is called: with completions as `text`, with prompts and completions as `messages`, one by one as in `verl`; `auto` (the default) settles it by the function's parameters."""
    on_error: dict[str, OnRewardError] = field(default_factory=dict[str, OnRewardError])
    """What an exception inside a term, or a call beyond its time limit, does: `stop` the run (the default) or `abstain`, which leaves the term's value out and counts it."""
    time_limits: dict[str, float] = field(default_factory=dict[str, float])
    """Longest call of a term: of all completions of a rollout at once, or of one completion in verl's style; a term without an entry has no limit [seconds]."""
    workers: int = 0
    """Processes that reward completions, beside the program and while it samples on: built-in terms and functions in verl's style are shared out, functions that see the whole batch are called in one of them, the graders of data=reasoning_gym stay with the program; 0 rewards in the program itself [processes]."""
    normalize: RewardNormalization = RewardNormalization.none
    """What credit sees: the utility itself (`none`), the utility in units of its deviation (`sum`), or the weighted sum of terms each in units of its own deviation, scaled to deviation 1 over the batch (`term`, GDPO). Logged rewards and evaluations are never normalised."""
    normalize_by: NormalizeBy = NormalizeBy.group
    """Whose deviation divides: the group's, or that of all the rollout's completions (`batch`); the mean taken away is always the group's."""
    format: FormatSettings = field(default_factory=FormatSettings)
    numeric: NumericSettings = field(default_factory=NumericSettings)
    regex: RegexSettings = field(default_factory=RegexSettings)
    length: LengthSettings = field(default_factory=LengthSettings)
    overlong: OverlongSettings = field(default_factory=OverlongSettings)
    repetition: RepetitionSettings = field(default_factory=RepetitionSettings)


@dataclass(slots=True)
class TaskRewardConfig(RewardConfig):
    """The task's own grader with weight 1."""

    terms: dict[str, float] = field(default_factory=lambda: {"task": 1.0})


@dataclass(slots=True)
class MathRewardConfig(RewardConfig):
    """Mathematical equality with the row's answer, and a tenth of that for a single boxed answer."""

    terms: dict[str, float] = field(default_factory=lambda: {"math": 1.0, "format": 0.1})
    format: FormatSettings = field(default_factory=lambda: FormatSettings(style=FormatStyle.boxed))


@dataclass(slots=True)
class TermsRewardConfig(RewardConfig):
    """No term chosen: list them, as in `reward.terms.exact=1`."""

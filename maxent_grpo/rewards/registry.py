"""Reward terms by name: the built-in ones and what each rewards, and the list of terms that a configuration asks for.

A term is a function ``f(prompts, completions, completion_ids, **columns)`` that returns one value per completion: a number,
None to abstain (the row is left out), or a ``Grade``, which also names the completion's mode. The columns are those of the
dataset row, one entry per completion; a function takes what it names, or everything through ``**kwargs``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from maxent_grpo.rewards.functions import RewardFunction, imported_function
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.term_settings import (
    FormatSettings,
    FormatStyle,
    FunctionStyle,
    LengthSettings,
    NumericSettings,
    OverlongSettings,
    RegexSettings,
    RepetitionSettings,
    RepetitionUnit,
)
from maxent_grpo.rewards.terms import RewardTerm

if TYPE_CHECKING:
    from maxent_grpo.rewards.graders import TextGrader

Grader = Callable[[str, str], Grade]

BUILT_IN = {
    "task": "the task's own grader: 1 for a right answer, 0 for any other",
    "format": "1 if the completion is well formed, right or wrong, else 0: see reward.format.style",
    "exact": "1 if the completion is the row's answer, white space aside",
    "numeric": "1 if the completion states one number and it is the row's answer, within reward.numeric's tolerance",
    "choice": "1 if the completion chooses the letter of the row's answer and no other",
    "math": "1 if the completion states one answer that is mathematically the row's",
    "regex": "1 if reward.regex.pattern matches the completion, else 0",
    "length": "1 for a completion of reward.length.target tokens, falling in a straight line to 0",
    "overlong": "0, and down to -1 over the last reward.overlong.buffer tokens before the limit",
    "repetition": "minus the share of n-grams that occurred before in the completion: 0 down to -1",
}
"""The named terms and what each rewards."""
TEXT_GRADERS = ("exact", "numeric", "choice", "math")
"""Terms that compare the completion with the row's answer."""


@dataclass(frozen=True)
class TermSettings:
    """What the built-in terms go by."""

    format: FormatSettings = field(default_factory=FormatSettings)
    numeric: NumericSettings = field(default_factory=NumericSettings)
    regex: RegexSettings = field(default_factory=RegexSettings)
    length: LengthSettings = field(default_factory=LengthSettings)
    overlong: OverlongSettings = field(default_factory=OverlongSettings)
    repetition: RepetitionSettings = field(default_factory=RepetitionSettings)
    max_completion_len: int = 0
    """Longest completion that is sampled [tokens]."""
    assistant_prefix: str = ""
    """What the prompt has already written of every completion."""
    answer_in: str = "whole"
    """Part of a completion that the text graders see, as in ``extract.AnswerPart``."""


@dataclass(frozen=True)
class CallSettings:
    """How terms are called, each by name of the term."""

    functions: Mapping[str, str] = field(default_factory=dict[str, str])
    """The user's functions: ``package.module:function`` or ``folder/file.py:function``."""
    styles: Mapping[str, FunctionStyle] = field(default_factory=dict[str, FunctionStyle])
    abstaining: frozenset[str] = frozenset()
    """Terms that abstain from what they fail on."""
    time_limits: Mapping[str, float] = field(default_factory=dict[str, float])
    """Longest call [seconds]."""


def build_terms(
    weights: Mapping[str, float], calls: CallSettings, grade: Grader, settings: TermSettings | None = None
) -> list[RewardTerm]:
    """The terms named by ``weights``, in their order: built-in ones, or functions of the user's.

    Raises:
        ConfigError: a function cannot be found.
    """
    settings = settings or TermSettings()
    return [
        RewardTerm(
            name,
            _built_in(name, grade, settings)
            if name in BUILT_IN
            else imported_function(f"reward.functions.{name}", calls.functions[name]),
            name in calls.abstaining,
            calls.styles.get(name, FunctionStyle.auto),
            calls.time_limits.get(name),
            is_built_in=name in BUILT_IN,
        )
        for name in weights
    ]


@dataclass(frozen=True)
class TermRecipe:
    """A term as another process can build it."""

    name: str
    calls: CallSettings
    settings: TermSettings
    grade: Grader | None = None
    """The task's own grader, for the terms that call it."""

    def build(self) -> RewardTerm:
        """The term.

        Raises:
            ConfigError: its function cannot be found.
        """
        return build_terms({self.name: 1.0}, self.calls, self.grade or _no_grader, self.settings)[0]


def term_recipes(
    weights: Mapping[str, float], calls: CallSettings, grade: Grader | None, settings: TermSettings
) -> list[TermRecipe]:
    """Recipes of the terms, without those that call a grader of the task where none can be sent (``grade`` is None)."""
    return [
        TermRecipe(name, calls, settings, grade if calls_task(name, settings) else None)
        for name in weights
        if grade is not None or not calls_task(name, settings)
    ]


def calls_task(name: str, settings: TermSettings) -> bool:
    """Whether a term calls the task's own grader."""
    return name == "task" or (name == "format" and settings.format.style is FormatStyle.task)


def _no_grader(completion: str, answer: str) -> Grade:
    raise AssertionError("this term does not call the task's grader")


def overlong_sizes(settings: OverlongSettings, max_completion_len: int) -> tuple[int, int]:
    """Limit and buffer of the term ``overlong`` [tokens]."""
    limit = max_completion_len if settings.limit is None else settings.limit
    return limit, max(limit // 5, 1) if settings.buffer is None else settings.buffer


def _built_in(name: str, grade: Grader, settings: TermSettings) -> RewardFunction:
    if name in TEXT_GRADERS:
        return _against_answer(_text_grader(name, settings).many)
    if name == "task":
        return _against_answer(_one_by_one(grade))
    if name == "format":
        return _format(grade, settings)
    return _of_completions(name, settings)


def _text_grader(name: str, settings: TermSettings) -> TextGrader:
    from maxent_grpo.rewards.graders import GRADERS, numeric_grader, on_part

    grader = GRADERS[name]
    if name == "numeric":
        grader = numeric_grader(absolute=settings.numeric.absolute, relative=settings.numeric.relative)
    return grader if settings.answer_in == "whole" else on_part(grader, settings.answer_in)


def _one_by_one(grade: Grader) -> Callable[[Sequence[str], Sequence[str]], list[Grade]]:
    return lambda completions, answers: [grade(text, right) for text, right in zip(completions, answers, strict=True)]


def _against_answer(many: Callable[[Sequence[str], Sequence[str]], list[Grade]]) -> RewardFunction:
    def term(completions: Sequence[str], answer: Sequence[str]) -> list[Grade]:
        return many(completions, answer)

    return term


def _format(grade: Grader, settings: TermSettings) -> RewardFunction:
    from maxent_grpo.rewards.well_formed import has_one_box, has_think_and_answer

    if settings.format.style is FormatStyle.task:

        def reads_as_answer(completions: Sequence[str], answer: Sequence[str]) -> list[float]:
            return [float(verdict.reason == "") for verdict in _one_by_one(grade)(completions, answer)]

        return reads_as_answer
    well_formed = has_one_box if settings.format.style is FormatStyle.boxed else has_think_and_answer

    def term(completions: Sequence[str]) -> list[float]:
        return [float(well_formed(settings.assistant_prefix + text)) for text in completions]

    return term


def _of_completions(name: str, settings: TermSettings) -> RewardFunction:
    """The terms that look at nothing but the completion."""
    import regex

    from maxent_grpo.rewards import well_formed as rules

    def length(completion_ids: Sequence[Sequence[int]]) -> list[float]:
        chosen = settings.length
        sizes = {"target": chosen.target, "width": chosen.width}
        return [rules.length_reward(len(ids), **sizes, shape=chosen.shape) for ids in completion_ids]

    def overlong(completion_ids: Sequence[Sequence[int]]) -> list[float]:
        limit, buffer = overlong_sizes(settings.overlong, settings.max_completion_len)
        return [rules.overlong_punishment(len(ids), limit=limit, buffer=buffer) for ids in completion_ids]

    def repetition(completions: Sequence[str], completion_ids: Sequence[Sequence[int]]) -> list[float]:
        size = settings.repetition.ngram_size
        if settings.repetition.unit is RepetitionUnit.words:
            return [rules.repetition_punishment(text.split(), ngram_size=size) for text in completions]
        return [rules.repetition_punishment(ids, ngram_size=size) for ids in completion_ids]

    def pattern(completions: Sequence[str]) -> list[Grade]:
        chosen = settings.regex
        assert chosen.pattern is not None, "the configuration refuses the term without a pattern"
        compiled = regex.compile(chosen.pattern)
        return [
            rules.pattern_grade(compiled, text, match=chosen.match, time_limit=chosen.time_limit)
            for text in completions
        ]

    return {"length": length, "overlong": overlong, "repetition": repetition, "regex": pattern}[name]

"""Settings of the built-in reward terms. Pure data: configuration nodes and arguments alike."""

from dataclasses import dataclass
from enum import StrEnum


class FunctionStyle(StrEnum):
    """How a reward function of the user's is called."""

    auto = "auto"
    text = "text"
    messages = "messages"
    verl = "verl"


class FormatStyle(StrEnum):
    """What a well-formed completion looks like."""

    task = "task"
    think_answer = "think_answer"
    boxed = "boxed"


class RegexMatch(StrEnum):
    """Which part of a completion a pattern has to match."""

    anywhere = "anywhere"
    whole = "whole"


class LengthShape(StrEnum):
    """On which side of a target length a reward falls."""

    near = "near"
    at_most = "at_most"
    at_least = "at_least"


class RepetitionUnit(StrEnum):
    """What n-grams are made of."""

    tokens = "tokens"
    words = "words"


@dataclass(slots=True)
class FormatSettings:
    """The term `format`: 1 for a well-formed completion, right or wrong, else 0."""

    style: FormatStyle = FormatStyle.task
    """`task`: it reads as an answer to the task's own grader. `think_answer`: it is <think>...</think> then <answer>...</answer>, each tag once and nothing outside. `boxed`: it has one closed box that is not empty."""


@dataclass(slots=True)
class NumericSettings:
    """The term `numeric`: how far a number may lie from the row's answer; the wider tolerance counts."""

    absolute: float = 0.0
    """Largest difference that is right; 0 asks for the number itself."""
    relative: float = 0.0
    """Largest difference that is right, as a share of the answer's size; 0 asks for the number itself."""


@dataclass(slots=True)
class RegexSettings:
    """The term `regex`: 1 where the pattern matches, else 0."""

    pattern: str | None = None
    """Pattern of the `regex` module, which reads those of `re`; null is none, and the term needs one."""
    match: RegexMatch = RegexMatch.anywhere
    """`anywhere` in the completion, or the `whole` of it."""
    time_limit: float = 0.1
    """Longest search in one completion; one that takes longer gets 0 and is counted as reward/rejected/too_slow [seconds]."""


@dataclass(slots=True)
class LengthSettings:
    """The term `length`: 1 at the target, falling in a straight line to 0."""

    target: int = 128
    """Length of a completion, its end token included, that is worth 1 [tokens]."""
    width: int = 64
    """Distance from the target at which nothing is left [tokens]."""
    shape: LengthShape = LengthShape.near
    """`near` falls on both sides of the target, `at_most` beyond it only, `at_least` below it only."""


@dataclass(slots=True)
class OverlongSettings:
    """The term `overlong`: DAPO's soft punishment, 0 up to limit - buffer tokens, then in a straight line down to -1 at the limit."""

    buffer: int | None = None
    """Last tokens before the limit over which the punishment grows; null is a fifth of the limit, as 4096 of 20480 in DAPO [tokens]."""
    limit: int | None = None
    """Length that is punished in full; null is generation.max_completion_len [tokens]."""


@dataclass(slots=True)
class RepetitionSettings:
    """The term `repetition`: minus the share of a completion's n-grams that occurred before in it, from 0 down to -1."""

    ngram_size: int = 3
    """Length of the runs that are compared; a shorter completion gets 0."""
    unit: RepetitionUnit = RepetitionUnit.tokens
    """Runs of `tokens`, the end token included, or of `words` between white space."""

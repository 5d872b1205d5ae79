"""Rewards for the form of a completion: tags, boxes, patterns, length, repetition. Pure; nothing in a completion can raise or take long."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import regex

from maxent_grpo.rewards.extract import CLOSE_TAG, CLOSE_THINK, OPEN_TAG, OPEN_THINK, boxed
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.term_settings import LengthShape, RegexMatch

TAGS = (OPEN_THINK, CLOSE_THINK, OPEN_TAG, CLOSE_TAG)


def has_think_and_answer(text: str) -> bool:
    """Whether a text is ``<think>...</think><answer>...</answer>``: each tag once, in order, with only white space outside."""
    places = [text.find(tag) for tag in TAGS]
    if any(text.count(tag) != 1 for tag in TAGS) or places != sorted(places):
        return False
    before, between = text[: places[0]], text[places[1] + len(CLOSE_THINK) : places[2]]
    return not (before.strip() or between.strip() or text[places[3] + len(CLOSE_TAG) :].strip())


def has_one_box(text: str) -> bool:
    """Whether a text has exactly one closed box, and something in it."""
    boxes = list(boxed(text))
    return len(boxes) == 1 and bool(boxes[0].strip())


def pattern_grade(pattern: regex.Pattern[str], text: str, *, match: RegexMatch, time_limit: float) -> Grade:
    """1 where the pattern matches, else 0; a search beyond ``time_limit`` seconds is 0 with the reason ``too_slow``."""
    search = pattern.fullmatch if match is RegexMatch.whole else pattern.search
    try:
        found = search(text, timeout=time_limit)
    except TimeoutError:
        return Grade(0.0, None, "too_slow")
    return Grade(float(found is not None), None, "")


def length_reward(length: int, *, target: int, width: int, shape: LengthShape) -> float:
    """max(0, 1 - d / width), d the tokens by which a length misses the target on a side that the shape minds."""
    beyond, short = max(length - target, 0), max(target - length, 0)
    missed = {LengthShape.near: beyond + short, LengthShape.at_most: beyond, LengthShape.at_least: short}[shape]
    return max(0.0, 1.0 - missed / width)


def overlong_punishment(length: int, *, limit: int, buffer: int) -> float:
    """0 up to limit - buffer tokens, then in a straight line down to -1 at the limit and beyond.

    Source: DAPO, arXiv 2503.14476, eq. 13.
    """
    return -min(1.0, max(0.0, (length - limit + buffer) / buffer))


def repetition_punishment(units: Sequence[Hashable], *, ngram_size: int) -> float:
    """Distinct n-grams over all n-grams, minus 1: 0 where none occurs twice, towards -1 where all are one; 0 without any.

    Source: arXiv 2502.03373, appendix C.2.
    """
    runs = [tuple(units[at : at + ngram_size]) for at in range(len(units) - ngram_size + 1)]
    return len(set(runs)) / len(runs) - 1.0 if runs else 0.0

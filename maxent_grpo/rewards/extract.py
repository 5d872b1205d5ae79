r"""Which part of a completion is its answer. Pure text in, text out; linear in the length of the completion.

A completion that names several different answers names none: otherwise listing every candidate would be rewarded. Whatever
stands before the last ``</think>`` is reasoning and never an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from maxent_grpo.rewards.grade import Grade

MAX_COMPLETION = 2_000_000
"""Longest completion that is read [characters]."""
MAX_ANSWER = 1000
"""Longest part of a completion that is graded [characters]."""
OPEN_TAG, CLOSE_TAG = "<answer>", "</answer>"
OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
HASHES = "####"
PHRASES = ("answer is", "answer:")
CONTINUATIONS = (". ", ", so ", ", because ", " because ", " since ", ", which ")
"""What ends the answer after a phrase, besides the end of its line."""
MAX_UNMARKED = 600
"""Longest completion that is itself taken for the answer, where nothing in it marks one [characters]."""
_BOX = re.compile(r"\\(?:boxed|fbox) *\{")
_SPACING = ("\\displaystyle", "\\left", "\\right", "\\,", "\\!", "\\;", "\\:", "\\ ", "~", "$")


class AnswerPart(StrEnum):
    """Which part of a completion a grader sees."""

    WHOLE = "whole"
    TAGS = "tags"
    BOXED = "boxed"


class Extracted(NamedTuple):
    """A completion's answer, or the reason why there is none."""

    text: str
    reason: str


def extract(completion: str, part: AnswerPart | str) -> Extracted:
    r"""The answer in the named part of a completion, without surrounding white space.

    ``whole``: the completion. ``tags``: what ``<answer>...</answer>`` holds. ``boxed``: what ``\boxed{...}`` (or ``\fbox``)
    holds, braces nested. Tags and boxes count after the last ``</think>`` only; those that say the same count once.

    Reasons: ``too_long`` (refused unread, or an answer beyond ``MAX_ANSWER`` in tags or a box), ``no_answer`` (no closed tags or
    box, or the reasoning never ends), ``several`` (different answers), ``empty``.
    """
    if len(completion) > MAX_COMPLETION:
        return Extracted("", "too_long")
    if part == AnswerPart.WHOLE:
        text = completion.strip()
        return Extracted(text, "" if text else "empty")
    said = after_thinking(completion)
    if said is None:
        return Extracted("", "no_answer")
    return _single(tagged(said) if part == AnswerPart.TAGS else boxed(said))


def stated_answer(completion: str, first_line: bool = False) -> Extracted:
    r"""The answer that a completion states, wherever it does: the first of these that occurs decides.

    1. ``<answer>...</answer>``; 2. ``\boxed{...}``, inside the tags or anywhere; 3. the rest of the line after ``####``;
    4. the rest of the sentence after "the answer is" or "answer:"; 5. all of it, if that is short, or its first line with
    ``first_line``. Reasons as ``extract``.
    """
    if len(completion) > MAX_COMPLETION:
        return Extracted("", "too_long")
    said = after_thinking(completion)
    if said is None:
        return Extracted("", "no_answer")
    if CLOSE_TAG in said:
        inside = _single(tagged(said))
        if inside.reason:
            return inside
        said = inside.text
    if _BOX.search(said):
        return _single(boxed(said))
    for places, marked in ((_hashes(said), _line), (_phrases(said), _sentence)):
        if places:
            return _single(marked(said, place) for place in places)
    said = said.strip()
    if first_line:
        return _single([_line(said, 0)])
    return _single([said.strip("*`")]) if len(said) <= MAX_UNMARKED else Extracted("", "no_answer")


def after_thinking(completion: str) -> str | None:
    """What follows the last ``</think>``; all of it without one; None when ``<think>`` is never closed."""
    end = completion.rfind(CLOSE_THINK)
    said = completion[end + len(CLOSE_THINK) :] if end >= 0 else completion
    return None if OPEN_THINK in said else said


def tagged(text: str) -> Iterator[str]:
    """What each closed pair of answer tags holds; of several opening tags before a closing one the last counts."""
    position = 0
    while (end := text.find(CLOSE_TAG, position)) >= 0:
        start = text.rfind(OPEN_TAG, position, end)
        if start >= 0:
            yield text[start + len(OPEN_TAG) : end]
        position = end + len(CLOSE_TAG)


def boxed(text: str) -> Iterator[str]:
    r"""What each outermost closed box holds; a box inside another belongs to the outer one.

    Escaped braces do not count. A box that is never closed holds nothing, nor does whatever it swallows.
    """
    box = _BOX.search(text)
    while box:
        end = _closing_brace(text, box.end())
        if end < 0:
            return
        yield text[box.end() : end]
        box = _BOX.search(text, end + 1)


def _closing_brace(text: str, position: int) -> int:
    """Place of the brace that closes the group whose content starts at ``position``; -1 when it is never closed."""
    depth, escaped = 1, False
    for place in range(position, len(text)):
        character = text[place]
        if escaped or character == "\\":
            escaped = not escaped
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if not depth:
                return place
    return -1


def _hashes(text: str) -> list[int]:
    return [mark.end() for mark in re.finditer(f"{HASHES}#*", text)]


def _phrases(text: str) -> list[int]:
    """Where each marking phrase ends, in either case."""
    return [mark.end() for mark in re.finditer("|".join(PHRASES), text, re.IGNORECASE)]


def _line(text: str, position: int) -> str:
    """From ``position`` to the end of the line; no further than what would be too long anyway."""
    end = text.find("\n", position, position + MAX_ANSWER + 2)
    return text[position : end if end >= 0 else position + MAX_ANSWER + 2].strip().strip("*`").strip()


def _sentence(text: str, position: int) -> str:
    """From the first word after ``position`` to the end of the line or of the sentence."""
    word = re.compile(r"[\s:*]*").match(text, position)
    line = _line(text, word.end() if word else position)
    for continuation in CONTINUATIONS:
        line = line.partition(continuation)[0]
    return line.strip().strip("*`").strip()


def _single(found: Iterable[str]) -> Extracted:
    """The one answer among those found, if they say the same but for spacing."""
    last, first, form = "", None, ""
    for text in found:
        if len(text) > MAX_ANSWER and len(text.strip()) > MAX_ANSWER:
            return Extracted("", "too_long")
        last = text.strip()
        if first is None:
            first, form = last, _unspaced(last)
        elif last != first and _unspaced(last) != form:
            return Extracted("", "several")
    if first is None:
        return Extracted("", "no_answer")
    return Extracted(last, "" if last else "empty")


def _unspaced(text: str) -> str:
    for spacing in _SPACING:
        text = text.replace(spacing, "")
    return "".join(text.split()).rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")


@dataclass(frozen=True)
class PartGrader:
    """A grader that is shown one part of each completion; 0, with the reason, where the completion does not have exactly one."""

    grade: Callable[[str, str], Grade]
    part: str
    begun: str = ""
    """What the prompt has already written of every completion."""

    def __call__(self, completion: str, answer: str) -> Grade:
        """The grade of one completion."""
        found = extract(self.begun + completion, self.part)
        return Grade(0.0, None, found.reason) if found.reason else self.grade(found.text, answer)

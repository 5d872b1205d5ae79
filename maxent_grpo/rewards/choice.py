"""Grading of multiple choice. Pure text in, verdict out."""

from __future__ import annotations

import re
from functools import lru_cache

from maxent_grpo.errors import DataError
from maxent_grpo.rewards.extract import stated_answer
from maxent_grpo.rewards.grade import Grade
from maxent_grpo.rewards.latex import normalised

LETTERS = "ABCDEFGHIJ"
_ALONE = re.compile(rf"[(\[]?\s*([{LETTERS}{LETTERS.lower()}])\s*[)\].:]?")
_FIRST = re.compile(rf"(?:[(\[]\s*([{LETTERS}])\s*[)\]]|([{LETTERS}])(?=[).:,;\s]|$))")
_NAMED = re.compile(rf"(?i:\b(?:option|choice|answer|is)\b)\s*:?\s*[(\[]?([{LETTERS}])(?![A-Za-z0-9'])")
_MENTIONED = re.compile(rf"(?<![A-Za-z0-9'])([{LETTERS}])(?![A-Za-z0-9'])")
_WORD_AFTER = re.compile(r"\s+[a-z]")


def grade_choice(completion: str, answer: str) -> Grade:
    """Reward 1 if the completion chooses the answer's letter (A to J) and mentions no other, else 0.

    A letter is chosen alone, in either case and in brackets or not; first, as in "B) because ..."; or after "option", "choice",
    "answer" or "is". "A" before a word in lower case and "I" are words, except in brackets and where they come first. Where nothing marks the
    answer, the first line is looked at. The key is the letter.

    Reasons: those of ``stated_answer``, ``several`` (more than one letter), ``not_a_choice``; a wrong letter has none.

    Raises:
        DataError: the answer is not one letter.
    """
    right = right_letter(answer)
    stated = stated_answer(completion, first_line=True)
    if stated.reason:
        return Grade(0.0, None, stated.reason)
    letters, chosen = _letters(_plain(stated.text))
    if len(letters) > 1:
        return Grade(0.0, None, "several")
    if not chosen:
        return Grade(0.0, None, "not_a_choice")
    return Grade(1.0, right, "") if letters == {right} else Grade(0.0, None, "", key=letters.pop())


@lru_cache(maxsize=1024)
def right_letter(answer: str) -> str:
    """The letter that an answer is, in brackets or not.

    Raises:
        DataError: it is none.
    """
    stated = stated_answer(answer)
    match = None if stated.reason else _ALONE.fullmatch(_plain(stated.text))
    if match is None:
        raise DataError(
            f"answer {answer[:200]!r} is not one letter from A to {LETTERS[-1]}, so that no completion can be graded against it by "
            "the choice grader: correct the row, or choose the grader exact"
        )
    return match[1].upper()


def _plain(text: str) -> str:
    r"""The text without emphasis, ``$`` and ``\text{}``."""
    text = normalised(text.replace("*", "").replace("`", ""))
    return re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip()


def _letters(text: str) -> tuple[set[str], bool]:
    """The letters that a text mentions, and whether one of them is chosen."""
    alone = _ALONE.fullmatch(text)
    if alone:
        return {alone[1].upper()}, True
    first = _FIRST.match(text)
    chosen = {first[1] or first[2]} if first and not _is_word(text, first) else set[str]()
    chosen |= {match[1] for match in _NAMED.finditer(text) if not _is_word(text, match)}
    mentioned = {match[1] for match in _MENTIONED.finditer(text) if not _is_word(text, match)}
    return chosen | mentioned, bool(chosen)


def _is_word(text: str, match: re.Match[str]) -> bool:
    """Whether a letter is the article A or the pronoun I."""
    if text[match.end() - 1] in ")]" or text[match.end() : match.end() + 1] in (")", "]", ".", ":"):
        return False
    letter = next(group for group in match.groups() if group)
    return (letter == "A" and _WORD_AFTER.match(text, match.end()) is not None) or (letter == "I" and len(text) > 1)

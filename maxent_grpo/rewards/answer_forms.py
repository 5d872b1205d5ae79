"""The forms of a mathematical answer: number, words, expression, tuple, set, interval, matrix, equation."""

from __future__ import annotations

from dataclasses import dataclass

from maxent_grpo.rewards.numerals import Numeral

INFINITIES = {
    "\\infty": "\\infty",
    "+\\infty": "\\infty",
    "+ \\infty": "\\infty",
    "-\\infty": "-\\infty",
    "- \\infty": "-\\infty",
}
"""Infinity with its sign, in the one spelling that is compared."""


class Unreadable(Exception):
    """A text has none of the forms; its one argument is the reason, in one word."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number."""

    numeral: Numeral


@dataclass(frozen=True, slots=True)
class Words:
    """Words, a ratio, a time: what only its text decides."""

    text: str


@dataclass(frozen=True, slots=True)
class Based:
    """Digits with the base they are written in."""

    digits: str
    base: str


@dataclass(frozen=True, slots=True)
class Expression:
    """Mathematics to be read: an expression or, with ``relation``, an equation or inequality between two."""

    text: str
    relation: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """The value of a variable, as in ``x = 5`` or ``x \\in [1, 2]``; ``text`` is all of it."""

    name: str
    value: Shape
    text: str


@dataclass(frozen=True, slots=True)
class Ordered:
    """Items whose order and brackets count: a point, a tuple, an interval."""

    opening: str
    items: tuple[Shape, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Unordered:
    """Items whose order does not count: a set, a list, a union of intervals, the two values of a plus-minus sign."""

    items: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """A matrix."""

    rows: tuple[tuple[Shape, ...], ...]


Shape = Number | Words | Based | Expression | Named | Ordered | Unordered | Rows

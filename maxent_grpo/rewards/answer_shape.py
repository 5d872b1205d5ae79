r"""The outer form of a mathematical answer: number, words, expression, tuple, set, interval, matrix, equation. Pure text work.

What mathematics a part holds is for another to read; this module finds the parts. So ``(1, 2)``, ``[1, 2)`` and ``\{1, 2\}``
stay what they are, which a reader that parses all at once need not keep apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from maxent_grpo.rewards.latex import balanced, normalised, split_at, wrapped
from maxent_grpo.rewards.numerals import MAX_UNIT_WORDS, VALUE_WORDS, Numeral, numeral

MAX_LENGTH = 300
"""Longest expression that is read [characters]."""
MAX_BRACKETS = 8
"""Deepest nesting of brackets in an expression, and of forms in a form."""
MAX_ITEMS = 64
MAX_WORDS = 60
"""Longest answer in words [characters]; beyond it a text is an explanation."""
INFINITIES = {
    "\\infty": "\\infty",
    "+\\infty": "\\infty",
    "+ \\infty": "\\infty",
    "-\\infty": "-\\infty",
    "- \\infty": "-\\infty",
}
SMALLER, LARGER = ("<", "\\le"), (">", "\\ge")
RELATIONS = (*SMALLER, *LARGER, "\\ne", "=", "\\in")
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi varphi chi psi omega"
    " Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_COMMANDS = frozenset(
    f"frac sqrt pi infty cdot times div binom lfloor rfloor lceil rceil {_GREEK}"
    " arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc log ln exp".split()
)
"""Commands that an expression may hold; one that hides, moves or reads text is not among them."""
_TOKEN = re.compile(r"\\([A-Za-z]+)|\d+(?:\.\d+)?|\.\d+|[A-Za-z]+|[-+*/^_(){}\[\]|!]|\s+")
_SYMBOL = re.compile(
    r"(?:[A-Za-z]|[A-Z]{2,}|[A-Za-z]{3,}|\\text\s*\{[^{}]*\}|\\angle\s*[A-Z]+|\\[A-Za-z]+)(?:_(?:\w|\{\w+\}))?(?:\([\w, ]*\))?"
)
_BASED = re.compile(r"([0-9A-Fa-f]+)\s*_\s*(?:\{\s*(\d+)\s*\}|(\d+))")
_MATRIX = re.compile(r"\\begin\s*\{([pbB]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\s*\{\1\}")
_TEXTS = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[\w ,./:'-]+")
_RATIO = re.compile(r"\d+(?:\s*:\s*\d+)+")
_TEXT_UNIT = re.compile(r"\s*\\text\s*\{([^{}]*)\}(?:\s*\^\s*(?:\d|\{\s*\d\s*\}))?$")
_WORD_UNIT = re.compile(r"\s+([A-Za-z]{3,}|[ckm]m|[km]g|m[lL]|ft|lb|oz)(?:\s*\^\s*(?:\d|\{\s*\d\s*\}))?$")
_LARGE_POWER = re.compile(r"\^\s*\{?\s*[+-]?\s*\d{5}")
_TWO_NUMBERS = re.compile(r"(?<![\w.])\d+(?:\.\d*)?\s+\.?\d")


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


def answer_shape(text: str) -> Shape:
    """The form of an answer.

    Raises:
        Unreadable: ``too_long``, ``too_deep``, ``empty``, ``syntax`` or ``forbidden`` (a command or sign that no form has).
    """
    if len(text) > 2 * MAX_LENGTH:
        raise Unreadable("too_long")
    return _shape(normalised(text), MAX_BRACKETS)


def _shape(text: str, depth: int) -> Shape:
    if not text:
        raise Unreadable("empty")
    if not depth:
        raise Unreadable("too_deep")
    if not balanced(text):
        raise Unreadable("syntax")
    number = numeral(text)
    if number is not None:
        return Number(number)
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _rows(matrix[2], depth)
    items, separators = split_at(text, (",", ";"))
    if separators:
        return _unordered(items, depth)
    parts, signs = split_at(text, RELATIONS)
    if signs:
        return _related(text, parts, signs, depth)
    for separators in (("\\cup",), ("\\pm", "\\mp")):
        parts, signs = split_at(text, separators)
        if signs:
            return _unordered(parts, depth) if "\\cup" in signs else _both_signs(parts, depth)
    return _bracketed(text, depth) or _simple(text)


def _unordered(items: list[str], depth: int) -> Shape:
    """The items, those of sets among them one by one; a single one is itself."""
    if len(items) > MAX_ITEMS:
        raise Unreadable("too_long")
    flat: list[Shape] = []
    for item in items:
        shape = _shape(item, depth - 1)
        flat.extend(shape.items if isinstance(shape, Unordered) else [shape])
    return flat[0] if len(flat) == 1 else Unordered(tuple(flat))


def _both_signs(parts: list[str], depth: int) -> Shape:
    if len(parts) != 2:
        raise Unreadable("syntax")
    left, right = parts
    return _unordered([f"{left}+{right}" if left else right, f"{left}-{right}"], depth)


def _related(text: str, parts: list[str], signs: list[str], depth: int) -> Shape:
    if not all(parts):
        raise Unreadable("syntax")
    if signs == ["\\in"] and _SYMBOL.fullmatch(parts[0]):
        return Named(parts[0], _shape(parts[1], depth - 1), text)
    if set(signs) == {"="}:
        return _equated(text, parts, depth)
    interval = _interval(parts, signs, depth)
    if interval is not None:
        return interval
    if len(parts) != 2 or "\\in" in signs:
        raise Unreadable("syntax")
    return _expression(text, relation=True)


def _equated(text: str, parts: list[str], depth: int) -> Shape:
    """``x = value``, where several values must be one number; arithmetic and its result, as the result; or an equation."""
    if _SYMBOL.fullmatch(parts[0]):
        values = [_shape(part, depth - 1) for part in parts[1:]]
        numbers = {value.numeral.value if isinstance(value, Number) else None for value in values}
        if len(values) == 1 or (len(numbers) == 1 and None not in numbers):
            return Named(parts[0], values[-1], text)
        raise Unreadable("syntax")
    if all(map(_is_working, parts[:-1])):
        result = _shape(parts[-1], depth - 1)
        if isinstance(result, Number) and all(number in (None, result.numeral) for number in map(numeral, parts[:-1])):
            return result
    if len(parts) != 2 or all(map(_is_working, parts)):
        raise Unreadable("syntax")
    return _expression(text, relation=True)


def _is_working(text: str) -> bool:
    """Whether a text is arithmetic without variables."""
    return not any(character.isalpha() for character in re.sub(r"\\[A-Za-z]+", "", text))


def _interval(parts: list[str], signs: list[str], depth: int) -> Shape | None:
    """The interval that an inequality of one variable between bounds is; None when it is of another kind."""
    if set(signs) <= set(LARGER):
        parts, signs = parts[::-1], [SMALLER[LARGER.index(sign)] for sign in signs[::-1]]
    if not set(signs) <= set(SMALLER):
        return None
    middle = [place for place, part in enumerate(parts) if _SYMBOL.fullmatch(part) and part not in INFINITIES]
    if len(middle) != 1 or not (len(parts) == 2 or (len(parts) == 3 and middle == [1])):
        return None
    (place,) = middle
    low = _shape(parts[place - 1], depth - 1) if place else Expression("-\\infty")
    high = _shape(parts[place + 1], depth - 1) if place + 1 < len(parts) else Expression("\\infty")
    opening = "[" if place and signs[place - 1] == "\\le" else "("
    closing = "]" if place + 1 < len(parts) and signs[place] == "\\le" else ")"
    return Named(parts[place], Ordered(opening, (low, high), closing), " < ".join(parts))


def _rows(text: str, depth: int) -> Shape:
    cells = [split_at(row, ("&",))[0] for row in text.split("\\cr") if row.strip()]
    if not cells or len({len(row) for row in cells}) != 1 or sum(map(len, cells)) > MAX_ITEMS:
        raise Unreadable("syntax")
    return Rows(tuple(tuple(_shape(cell, depth - 1) for cell in row) for row in cells))


def _bracketed(text: str, depth: int) -> Shape | None:
    """A tuple, interval, set, or what redundant brackets hold; None when no bracket goes round the text."""
    if not wrapped(text):
        return None
    if text.startswith("\\{"):
        inside = text[2:-2].strip()
        return _unordered(split_at(inside, (",", ";"))[0], depth) if inside else Unordered(())
    opening, inside, closing = text[0], text[1:-1].strip(), text[-1]
    items, separators = split_at(inside, (",", ";"))
    if opening in "([" and separators:
        if len(items) > MAX_ITEMS:
            raise Unreadable("too_long")
        return Ordered(opening, tuple(_shape(item, depth - 1) for item in items), closing)
    return _shape(inside, depth - 1) if (opening, closing) in (("(", ")"), ("{", "}")) else None


def _simple(text: str) -> Shape:
    if text in INFINITIES:
        return Expression(INFINITIES[text])
    if text == "\\emptyset":
        return Unordered(())
    based = _BASED.fullmatch(text)
    if based:
        return Based(based[1].upper(), based[2] or based[3])
    bare = " ".join(_TEXTS.sub(r" \1 ", text).split())
    if len(bare) > MAX_WORDS:
        return _expression(_without_unit(text))
    if _RATIO.fullmatch(bare):
        return Words(bare.replace(" ", ""))
    if _WORDS.fullmatch(bare) and (text.startswith("\\text") or _reads_as_words(bare)):
        return Words(bare.casefold())
    return _expression(_without_unit(text))


def _reads_as_words(text: str) -> bool:
    """Whether a text of letters, digits and blanks is words: letters only, two at least, or three in a row."""
    letters = text.replace(" ", "")
    return (letters.isalpha() and len(letters) > 1) or ":" in text or re.search(r"[^\W\d_]{3}", text) is not None


def _without_unit(text: str) -> str:
    """An expression without the unit after it: text, or a word that is no product of variables."""
    for pattern in (_TEXT_UNIT, _WORD_UNIT):
        match = pattern.search(text)
        if match and match.start():
            words = match[1].split()
            if len(words) <= MAX_UNIT_WORDS and not any(word.lower().strip(".,") in VALUE_WORDS for word in words):
                return text[: match.start()]
    return text


def _expression(text: str, relation: bool = False) -> Expression:
    """The expression, if it is made of what expressions are made of; what it means is not looked at."""
    if len(text) > MAX_LENGTH:
        raise Unreadable("too_long")
    plain = text
    if relation:
        for sign in RELATIONS:
            plain = " + ".join(split_at(plain, (sign,))[0]) if sign in plain else plain
    place, depth = 0, 0
    while place < len(plain):
        token = _TOKEN.match(plain, place)
        if token is None or (token[1] and token[1] not in _COMMANDS) or (token[0][0].isalpha() and len(token[0]) > 2):
            raise Unreadable("forbidden")
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth > MAX_BRACKETS:
            raise Unreadable("too_deep")
        place = token.end()
    if not plain.isascii() or plain[-1] in "+-*/^_" or plain[0] in "*/^_!" or _TWO_NUMBERS.search(plain):
        raise Unreadable("syntax")
    if _LARGE_POWER.search(plain):
        raise Unreadable("too_large")
    return Expression(text, relation)

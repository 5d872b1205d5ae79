r"""Reading one number. Pure text in, an exact fraction out; no expression is ever evaluated.

A number is an integer, a decimal, a fraction of two of these, a mixed number or scientific notation, with an optional sign,
thousands separators, percent sign and unit. Sums, products, powers and roots are expressions, not numbers: were ``3+4``
read as 7, repeating the problem would solve it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from maxent_grpo.rewards.latex import normalised, wrapped

MAX_DIGITS = 400
"""Most digits of a number, and its largest decimal exponent."""
MAX_LENGTH = 600
"""Longest text that is read as a number [characters]."""
_PLAIN = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)"
_SIGNED = rf"[+-]?\s*{_PLAIN}"
_PART = rf"(?:\{{\s*({_SIGNED})\s*\}}|(\d))"
_WHOLE = r"(\d{1,3}(?:,\d{3})+|\d+)"
_FRACTION = re.compile(rf"(?:{_WHOLE}\s*)?\\frac\s*{_PART}\s*{_PART}")
_SLASH = re.compile(rf"(?:{_WHOLE}\s+)?({_PLAIN})\s*/\s*({_SIGNED})")
_SCIENTIFIC = re.compile(
    rf"({_PLAIN})(?:[eE]|\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^)\s*(?:\{{\s*([+-]?\d+)\s*\}}|([+-]?\d+))"
)
_REPEATING = re.compile(r"(\d+)\.(\d*)\\overline\s*\{\s*(\d+)\s*\}")
_DECIMAL = re.compile(_PLAIN)
_POWER = r"(?:\s*\^\s*(?:\d|\{\s*\d\s*\}))?"
_TEXT_UNIT = re.compile(rf"\s*\\text\s*\{{([^{{}}]*)\}}{_POWER}$")
_DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*(?:[CF])?$")
_WORD_UNIT = re.compile(rf"\s*(?<![A-Za-z\\])([A-Za-z]+(?:[ /.-]+[A-Za-z]+)*){_POWER}[.]?$")
LETTER_UNITS = frozenset("mgshlLNJWV")
"""Units of one letter; any other single letter is a variable."""
_VALUE_WORDS = (
    "hundred thousand million billion trillion dozen dozens score half halves third thirds quarter quarters fifth fifths"
    " tenth tenths pi infinity or and not minus plus times over to than between from except but zero one two three four five six"
    " seven eight nine ten eleven twelve point squared cubed factorial mod is are was wrong incorrect false if either neither"
    " unknown undefined"
)
VALUE_WORDS = frozenset(_VALUE_WORDS.split())
"""Words that change a number, or say that it is none; text with one of them is not a number with a unit."""
MAX_UNIT_WORDS = 4


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number as it was written: ``value`` with a percent sign already divided by 100."""

    value: Fraction
    percent: bool = False
    rounded: bool = False
    """Written with a decimal point, so that it may stand for a number near it."""


def read_number(text: str) -> Numeral | None:
    """The number that a text is, see the module; None when it is anything else."""
    return numeral(normalised(text)) if len(text) <= MAX_LENGTH else None


def numeral(text: str) -> Numeral | None:
    """As ``read_number``, of a text that is normalised already."""
    if len(text) > MAX_LENGTH:
        return None
    text = text.strip()
    if text.startswith("(") and wrapped(text) and "," not in text:
        text = text[1:-1].strip()
    sign, text = _sign(text)
    text, percent = without_unit(text)
    value, rounded = _magnitude(text)
    if value is None:
        return None
    return Numeral(sign * value / (100 if percent else 1), percent, rounded)


def same_number(right: Numeral, given: Numeral) -> bool:
    """Whether two numbers are the same answer.

    Exactly equal; or one counts percents and equals the other with or without its sign (50% for 0.5 and for 50); or one is a
    decimal and the other a fraction without a finite decimal form that agrees with it to six significant digits.
    """
    if right.value == given.value:
        return True
    if right.percent != given.percent:
        shown, bare = (right, given) if right.percent else (given, right)
        return shown.value * 100 == bare.value
    if right.percent or right.rounded == given.rounded:
        return False
    exact = given.value if right.rounded else right.value
    return not _terminates(exact) and abs(right.value - given.value) <= SIX_DIGITS * abs(right.value)


SIX_DIGITS = Fraction(5, 10**6)
"""Relative difference within which a decimal stands for a number that has none."""


def _sign(text: str) -> tuple[int, str]:
    if text[:1] in ("-", "+"):
        return (-1 if text[0] == "-" else 1), text[1:].lstrip()
    return 1, text


def without_unit(text: str) -> tuple[str, bool]:
    """A number without its unit, and whether that was a percent sign; unchanged where it ends in no unit."""
    if text.endswith("%"):
        return text[:-1].rstrip(), True
    for pattern in (_DEGREES, _TEXT_UNIT, _WORD_UNIT):
        match = pattern.search(text)
        if match is None or not match.start():
            continue
        words = re.split(r"[ /.-]+", match[1].strip(" ./-")) if match.re.groups else []
        if [word.lower() for word in words] in (["percent"], ["percentage"], ["pct"]):
            return text[: match.start()].rstrip(), True
        if len(words) <= MAX_UNIT_WORDS and all(map(_is_unit, words)):
            return text[: match.start()].rstrip(), False
    return text, False


def _is_unit(word: str) -> bool:
    if len(word) == 1:
        return word in LETTER_UNITS
    return word.isalpha() and word.isascii() and word.lower() not in VALUE_WORDS


def _magnitude(text: str) -> tuple[Fraction | None, bool]:
    """The value of an unsigned number without unit and whether it has a decimal point; None when it is no number."""
    if sum(map(str.isdigit, text)) > MAX_DIGITS or not text.isascii():
        return None, False
    if _DECIMAL.fullmatch(text):
        return _plain(text), "." in text
    if match := _FRACTION.fullmatch(text):
        return _mixed(match[1], match[2] or match[3], match[4] or match[5]), False
    if match := _SLASH.fullmatch(text):
        return _mixed(match[1], match[2], match[3]), False
    if match := _SCIENTIFIC.fullmatch(text):
        exponent = int(match[2] or match[3])
        return (_plain(match[1]) * Fraction(10) ** exponent if abs(exponent) <= MAX_DIGITS else None), "." in match[1]
    if match := _REPEATING.fullmatch(text):
        shift, period = 10 ** len(match[2]), 10 ** len(match[3]) - 1
        return Fraction(int(match[1] + match[2]), shift) + Fraction(int(match[3]), shift * period), False
    return None, False


def _plain(text: str) -> Fraction:
    digits = text.replace(",", "").replace(" ", "")
    return Fraction(digits + "0" if digits.endswith(".") else digits)


def _mixed(whole: str | None, over: str, under: str) -> Fraction | None:
    """``whole + over / under``; None when that divides by zero, or a mixed number's fraction is signed."""
    above, below = _plain(over), _plain(under)
    if below == 0 or (whole is not None and (above < 0 or below < 0)):
        return None
    return (_plain(whole) if whole is not None else 0) + above / below


def _terminates(value: Fraction) -> bool:
    """Whether a number has a finite decimal form."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1

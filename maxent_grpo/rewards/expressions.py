"""Arithmetic up to commutativity, associativity and sign: when two expressions are the same solution, and all there are.

An expression over + - * / is brought into a normal form. Chains of + and - become a multiset of signed terms, chains of
* and / a multiset of factors above or below the line, each part again in normal form, and minus signs move outwards:

    -(a-b) = b-a        a-(b-c) = a-b+c        a/(b/c) = a*c/b        (-x)*y = -(x*y)        -(-x) = x

Numbers are values: two equal numbers are interchangeable. So are two operations that are the same because of a value: a factor
of value 1 multiplies and divides alike (``a*1`` and ``a/1``, ``a*(4-3)`` and ``a/(4-3)``), and a product of value 0 is added and
subtracted alike. Every other coincidence of values leaves two solutions: ``2+2`` and ``2*2``, ``a*1+b`` and ``(a+b)*1``. Laws that
need a number twice, such as distribution, cannot apply where each is used once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

Kind = Enum("Kind", ["NUMBER", "SUM", "PRODUCT"])


@dataclass(frozen=True, slots=True)
class Form:
    """The normal form of an expression whose value is not negative."""

    kind: Kind
    parts: tuple[tuple[int, Form], ...]
    """Terms of a sum with their sign, +1 or -1; factors of a product with their exponent, +1 or -1; none of a number."""
    value: Fraction
    text: str
    """The form written out; different forms have different texts, and reading one gives back its form."""


class Signed(NamedTuple):
    """An expression in normal form: ``sign`` times ``form``."""

    sign: int
    form: Form

    @property
    def value(self) -> Fraction:
        """The exact value."""
        return self.form.value if self.sign > 0 else -self.form.value

    @property
    def key(self) -> str:
        """The canonical text of the expression: equal exactly for expressions that are the same solution.

        It is itself such an expression. Larger parts come first, added before subtracted and multiplied before divided. An
        expression of value 0 and its negative are the same solution.
        """
        if self.sign > 0 or self.form.value == 0:
            return self.form.text
        if self.form.kind is Kind.SUM:
            return _sum_text(_ordered((-sign, term) for sign, term in self.form.parts))
        return "-" + self.form.text


Operation = Callable[[Signed, Signed], Signed]


@lru_cache(maxsize=4096)
def number(value: int) -> Signed:
    """A positive whole number."""
    return Signed(1, Form(Kind.NUMBER, (), Fraction(value), str(value)))


def negative(operand: Signed) -> Signed:
    """``-operand``."""
    return Signed(-operand.sign, operand.form)


def total(left: Signed, right: Signed) -> Signed:
    """``left + right``."""
    terms = [*_terms(left), *_terms(right)]
    value = left.value + right.value
    parts = _ordered(terms)
    if value > 0:
        return Signed(1, Form(Kind.SUM, parts, value, _sum_text(parts)))
    opposite = _ordered((-sign if term.value else 1, term) for sign, term in terms)
    text, opposite_text = _sum_text(parts), _sum_text(opposite)
    # a sum of value 0 has no sign to be normalised by, so of it and its negative the first in the alphabet is kept
    if value == 0 and text <= opposite_text:
        return Signed(1, Form(Kind.SUM, parts, value, text))
    return Signed(-1, Form(Kind.SUM, opposite, -value, opposite_text))


def product(left: Signed, right: Signed) -> Signed:
    """``left * right``."""
    return _product(left, right, 1)


def quotient(left: Signed, right: Signed) -> Signed:
    """``left / right``.

    Raises:
        ZeroDivisionError: the value of ``right`` is 0.
    """
    return _product(left, right, -1)


@lru_cache(maxsize=4096)
def solutions(numbers: tuple[int, ...], largest: int) -> dict[int, tuple[str, ...]]:
    """The whole numbers from 1 to ``largest`` that can be made of ``numbers`` (in increasing order), each used once.

    Maps each to the keys of all its solutions, in lexicographic order. A minus sign in front of a part adds none: it moves
    outwards until it turns a difference around or stands in front of the whole, whose value is positive.
    """
    found: dict[int, set[str]] = {}
    for left, right in _pairs(numbers):
        for operation, above, below in _candidates(left, right):
            if 0 < above <= largest * below and above % below == 0:
                found.setdefault(above // below, set()).add(operation(left, right).form.text)
    return {target: tuple(sorted(keys)) for target, keys in sorted(found.items())}


@lru_cache(maxsize=16384)
def _forms(numbers: tuple[int, ...]) -> tuple[Signed, ...]:
    """Every expression over exactly ``numbers``, without the sign in front of it."""
    if len(numbers) == 1:
        return (number(numbers[0]),)
    found: dict[str, Signed] = {}
    for left, right in _pairs(numbers):
        for operation, _, _ in _candidates(left, right):
            form = operation(left, right).form
            found[form.text] = Signed(1, form)
    return tuple(found.values())


def _pairs(numbers: tuple[int, ...]) -> Iterator[tuple[Signed, Signed]]:
    """Two expressions that together use ``numbers``, once for each way to divide them into two."""
    for taken in sorted(set(_divisions(numbers))):
        yield from itertools.product(_forms(taken[0]), _forms(taken[1]))


def _divisions(numbers: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    places = range(1, len(numbers))
    for size in range(len(numbers) - 1):
        for others in itertools.combinations(places, size):
            first = (numbers[0], *(numbers[place] for place in others))
            yield first, tuple(numbers[place] for place in places if place not in others)


def _difference(left: Signed, right: Signed) -> Signed:
    return total(left, negative(right))


def _reversed_quotient(left: Signed, right: Signed) -> Signed:
    return quotient(right, left)


def _candidates(left: Signed, right: Signed) -> Iterator[tuple[Operation, int, int]]:
    """The operations that are defined on two expressions without sign, each with its result's absolute value.

    The value is numerator and denominator, not reduced: only few results are whole, and this is the fast way to tell which.
    """
    a, c = left.form.value.as_integer_ratio()
    b, d = right.form.value.as_integer_ratio()
    yield total, a * d + b * c, c * d
    yield _difference, abs(a * d - b * c), c * d
    yield product, a * b, c * d
    if b:
        yield quotient, a * d, c * b
    if a:
        yield _reversed_quotient, c * b, a * d


def _terms(operand: Signed) -> list[tuple[int, Form]]:
    """The operand as terms of a sum."""
    sign, form = operand
    if form.kind is Kind.SUM:
        return [(sign * inner if term.value else 1, term) for inner, term in form.parts]
    return [(sign if form.value else 1, form)]


def _factors(operand: Signed, exponent: int) -> list[tuple[int, Form]]:
    """The operand to the power ``exponent``, +1 or -1, as factors of a product."""
    form = operand.form
    if form.kind is Kind.PRODUCT:
        return [(exponent * inner if factor.value != 1 else 1, factor) for inner, factor in form.parts]
    return [(exponent if form.value != 1 else 1, form)]


def _product(left: Signed, right: Signed, exponent: int) -> Signed:
    a, b = left.form.value, right.form.value
    value = a * b if exponent > 0 else a / b
    parts = _ordered([*_factors(left, 1), *_factors(right, exponent)])
    sign = left.sign * right.sign if value else 1
    return Signed(sign, Form(Kind.PRODUCT, parts, value, _product_text(parts)))


def _ordered(parts: Iterable[tuple[int, Form]]) -> tuple[tuple[int, Form], ...]:
    """Positive before negative, then the larger value first."""
    return tuple(sorted(parts, key=lambda part: (-part[0], -part[1].value, part[1].text)))


def _sum_text(terms: Sequence[tuple[int, Form]]) -> str:
    return "".join(("+" if sign > 0 else "-") + term.text for sign, term in terms).removeprefix("+")


def _product_text(factors: Sequence[tuple[int, Form]]) -> str:
    texts = [(exponent, f"({factor.text})" if factor.kind is Kind.SUM else factor.text) for exponent, factor in factors]
    return "".join(("*" if exponent > 0 else "/") + text for exponent, text in texts).removeprefix("*")

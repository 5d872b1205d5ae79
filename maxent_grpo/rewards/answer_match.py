"""Whether two answers are the same, form by form, and the key of one. Whoever reads expressions is an argument."""

from __future__ import annotations

from collections.abc import Callable

from maxent_grpo.rewards.answer_shape import (
    INFINITIES,
    Based,
    Expression,
    Named,
    Number,
    Ordered,
    Rows,
    Shape,
    Unordered,
    Words,
)
from maxent_grpo.rewards.numerals import same_number

Same = Callable[[str, str], bool]
"""Whether the second expression is the first."""
Key = Callable[[str], str]
"""The canonical form of an expression."""


def matches(right: Shape, given: Shape, same: Same) -> bool:
    """Whether ``given`` is the answer ``right``.

    A number is only ever matched by a number: an expression with its value still has to be worked out. Variables that name
    the answer may be left out; two that differ do not match.
    """
    match right, given:
        case Named(), Named():
            if right.name.replace(" ", "") != given.name.replace(" ", ""):
                return _same_equation(right, given, same)
            return matches(right.value, given.value, same)
        case Named(), Expression(relation=True):
            return _is_equation(right) and same(right.text, given.text)
        case Expression(relation=True), Named():
            return _is_equation(given) and same(right.text, given.text)
        case Named(), _:
            return matches(right.value, given, same)
        case _, Named():
            return matches(right, given.value, same)
        case Number(), Number():
            return same_number(right.numeral, given.numeral)
        case Number(), Based():
            return _digits(right) == given.digits
        case Based(), Number():
            return _digits(given) == right.digits
        case Expression(), Number():
            return not _atomic(right.text) and not right.relation and same(right.text, _decimal(given))
        case Expression(), Expression():
            return _same_expression(right, given, same)
        case Ordered(), Ordered():
            brackets = (right.opening, right.closing) == (given.opening, given.closing)
            return brackets and _one_by_one(right.items, given.items, same)
        case Unordered(), Unordered():
            return _in_any_order(right.items, given.items, same)
        case Rows(), Rows():
            return len(right.rows) == len(given.rows) and all(
                _one_by_one(first, second, same) for first, second in zip(right.rows, given.rows, strict=True)
            )
        case _:
            return right == given


def key_of(shape: Shape, key: Key) -> str:
    """The canonical form of an answer: equal for equal answers, whatever they look like, up to what ``key`` can tell."""
    match shape:
        case Number(numeral=numeral):
            return str(numeral.value)
        case Words(text=text):
            return text
        case Based(digits=digits, base=base):
            return f"{digits}_{base}"
        case Named(value=value):
            return key_of(value, key)
        case Expression(text=text):
            return text if _atomic(text) else key(text)
        case Ordered(opening=opening, items=items, closing=closing):
            return f"{opening}{', '.join(key_of(item, key) for item in items)}{closing}"
        case Unordered(items=items):
            return f"{{{', '.join(sorted({key_of(item, key) for item in items}))}}}"
        case Rows(rows=rows):
            return f"[{'; '.join(', '.join(key_of(cell, key) for cell in row) for row in rows)}]"


def _same_expression(right: Expression, given: Expression, same: Same) -> bool:
    if right == given:
        return True
    if right.relation != given.relation or _atomic(right.text) or _atomic(given.text):
        return False
    return same(right.text, given.text)


def _same_equation(right: Named, given: Named, same: Same) -> bool:
    return _is_equation(right) and _is_equation(given) and same(right.text, given.text)


def _is_equation(named: Named) -> bool:
    """Whether the value is an expression in further variables, so that the whole is an equation between variables."""
    return isinstance(named.value, Expression) and not _atomic(named.value.text) and "=" in named.text


def _atomic(text: str) -> bool:
    """Whether an expression is one letter or infinity, which only the same text is."""
    return text in INFINITIES or (len(text) == 1 and text.isalpha())


def _one_by_one(right: tuple[Shape, ...], given: tuple[Shape, ...], same: Same) -> bool:
    return len(right) == len(given) and all(
        matches(first, second, same) for first, second in zip(right, given, strict=True)
    )


def _in_any_order(right: tuple[Shape, ...], given: tuple[Shape, ...], same: Same) -> bool:
    """Whether each item of one is an item of the other; how often does not count."""
    return all(any(matches(item, other, same) for other in given) for item in right) and all(
        any(matches(item, other, same) for item in right) for other in given
    )


def _digits(number: Number) -> str:
    value = number.numeral.value
    return str(value) if value.denominator == 1 and not number.numeral.rounded else ""


def _decimal(number: Number) -> str:
    """The number as an expression, with a decimal point where it was written with one."""
    value = number.numeral.value
    text = f"\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    sign = "-" if value < 0 else ""
    return sign + text + ("+0.0" if number.numeral.rounded else "")

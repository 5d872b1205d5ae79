"""Which texts of a model may be handed to an evaluator: literals, and formulas of numbers, symbols and common functions.

Nothing is evaluated here. A text is read as a Python expression and every node of its tree is looked at; whatever is not on the
list (attributes, subscripts, other calls, comprehensions, strings in formulas, large or stacked powers) makes it not plain.
"""

from __future__ import annotations

import ast

MAX_LENGTH = 2_000
MAX_DIGITS = 40
MAX_EXPONENT = 100
"""Largest exponent in a formula."""
FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "exp", "log", "ln", "sqrt", "Abs", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def is_plain_literal(text: str) -> bool:
    """Whether a text is a literal of numbers, strings, lists and tuples, a lone name, or no expression at all.

    What is no expression makes an evaluator give up before it has done anything.
    """
    try:
        tree = _tree(text)
    except SyntaxError:
        return True
    return tree is not None and (isinstance(tree, ast.Name) or _is_literal(tree))


def is_plain_formula(text: str) -> bool:
    """Whether a text is a formula: + - * / **, signs, brackets, numbers, one-letter symbols and common functions."""
    try:
        tree = _tree(text)
    except SyntaxError:
        return False
    return tree is not None and _is_formula(tree)


def _tree(text: str) -> ast.expr | None:
    """The expression's tree; None where a text is too long, too deep or not plain characters to be looked at.

    Raises:
        SyntaxError: it is no expression.
    """
    if len(text) > MAX_LENGTH or not text.isascii() or "\0" in text:
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (RecursionError, MemoryError):
        return None


def _is_number(node: ast.expr) -> bool:
    # type() rather than isinstance: True is no number of a formula
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and len(repr(node.value)) <= MAX_DIGITS


def _is_literal(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, str) or _is_number(node)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_number(operand)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return all(_is_literal(part) for part in parts)
        case _:
            return False


def _is_formula(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return _is_number(node)
        case ast.Name(id=name):
            return len(name) == 1 or name == "pi"
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_formula(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _is_formula(left) and not _has_power(left) and _is_small_exponent(right)
        case ast.BinOp(left=left, op=operation, right=right):
            return isinstance(operation, _OPERATORS) and _is_formula(left) and _is_formula(right)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return name in FUNCTIONS and _is_formula(argument)
        case _:
            return False


def _has_power(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Pow) for part in ast.walk(node))


def _is_small_exponent(node: ast.expr) -> bool:
    """Small numbers and symbols, added, multiplied or divided: towers of powers never finish."""
    match node:
        case ast.Constant(value=value):
            return _is_number(node) and abs(float(value)) <= MAX_EXPONENT  # pyright: ignore[reportArgumentType]
        case ast.Name():
            return _is_formula(node)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_small_exponent(operand)
        case ast.BinOp(left=left, op=ast.Div() | ast.Mult() | ast.Add() | ast.Sub(), right=right):
            return _is_small_exponent(left) and _is_small_exponent(right)
        case _:
            return False

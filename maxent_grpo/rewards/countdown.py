"""Grading of a countdown answer: an expression that uses every number once and reaches the target.

Pure text in, verdict out. Nothing in a completion can raise, take long or be executed: what is not made of digits, operators
and parentheses is refused before it is parsed, what is parsed is short, and what is evaluated is a tree of exact fractions
over the problem's own numbers.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from maxent_grpo.errors import DataError
from maxent_grpo.rewards.expressions import Operation, Signed, negative, number, product, quotient, total
from maxent_grpo.rewards.grade import Grade

ALPHABET = "0123456789+-*/()"
"""Characters that expressions are made of, blanks aside."""
ASCII_WHITESPACE = " \t\n\r\f\v"
MAX_LENGTH = 256
"""Longest answer that is read, without surrounding white space [characters]."""
MAX_SYMBOLS = 64
"""Most operators and opening parentheses of an answer that is parsed; none is nested deeper than this."""
MAX_NUMBERS = 6
LARGEST_NUMBER = 10**6
OPEN_TAG, CLOSE_TAG = "<answer>", "</answer>"
_SIGNS = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-"})
_OPERATIONS: dict[type[ast.operator], Operation] = {ast.Add: total, ast.Mult: product, ast.Div: quotient}


@dataclass(frozen=True, slots=True)
class CountdownSpec:
    """A verifier: the numbers in increasing order and the target."""

    numbers: tuple[int, ...]
    target: int

    def to_json(self) -> str:
        """The text form that ``parse_spec`` reads; equal specs give equal text."""
        return json.dumps({"numbers": list(self.numbers), "target": self.target}, separators=(",", ":"))


@lru_cache(maxsize=8192)
def parse_spec(answer: str) -> CountdownSpec:
    """Read a verifier spec.

    Raises:
        DataError: the spec is not JSON of the documented form. That is a fault of the dataset, never of a completion, so it is
            not graded as a wrong answer.
    """
    try:
        fields = json.loads(answer)
        numbers = sorted(_whole(value) for value in fields["numbers"])
        target = _whole(fields["target"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(
            f"countdown answer {answer[:200]!r} is not a verifier spec ({type(error).__name__}: {error}); completions cannot be "
            f"graded against it. Rebuild the dataset: it needs numbers (2 to {MAX_NUMBERS} whole numbers from 1 to "
            f"{LARGEST_NUMBER}) and target (a whole number from 1)."
        ) from error
    if not 2 <= len(numbers) <= MAX_NUMBERS or numbers[0] < 1 or numbers[-1] > LARGEST_NUMBER or target < 1:
        raise DataError(
            f"countdown answer {answer[:200]!r} is no problem: it needs 2 to {MAX_NUMBERS} numbers from 1 to {LARGEST_NUMBER} "
            f"and a target of at least 1. Rebuild the dataset."
        )
    return CountdownSpec(tuple(numbers), target)


def grade_countdown(completion: str, answer: str) -> Grade:
    """Grade ``completion`` against the verifier spec ``answer``, see ``grade_expression``.

    Raises:
        DataError: the spec is broken.
    """
    spec = parse_spec(answer)
    return grade_expression(completion, spec.numbers, spec.target)


def grade_expression(completion: str, numbers: Sequence[int], target: int) -> Grade:
    """Reward 1 for an expression of value ``target`` that uses each of ``numbers`` exactly once, else 0.

    The answer is what the last closed ``<answer>...</answer>`` holds, or the whole completion where there is none. It is an
    expression of whole numbers, ``+ - * /`` (or the signs of multiplication, division and minus in their place), parentheses
    and blanks. A minus sign may stand before a part, a plus sign may not. ``= result`` may follow; a result other than the
    target is a wrong answer. The mode of a right answer is its canonical text, ``Signed.key``; the key of a wrong one is
    that too, with the result where it claims a false one.

    Reasons: ``empty``, ``too_long`` (refused unread), ``not_ascii`` (digits of other scripts among them), ``forbidden`` (other
    characters, powers, whole division, calls), ``too_deep`` (more than ``MAX_SYMBOLS`` operators and parentheses), ``syntax``,
    ``wrong_numbers``, ``division_by_zero``; a well-formed expression of another value has none.
    """
    text = answer_text(completion)
    reason = _refusal(text)
    if reason:
        return Grade(0.0, None, reason)
    text, equals, result = text.translate(_SIGNS).partition("=")
    tree, reason = _parsed(text, result if equals else None)
    if tree is None:
        return Grade(0.0, None, reason)
    if sorted(_numbers(tree)) != sorted(numbers):
        return Grade(0.0, None, "wrong_numbers")
    try:
        expression = _evaluated(tree)
    except ZeroDivisionError:
        return Grade(0.0, None, "division_by_zero")
    claim = f"={int(result)}" if equals and int(result) != expression.value else ""
    if expression.value != target or claim:
        return Grade(0.0, None, "", key=expression.key + claim)
    return Grade(1.0, expression.key, "")


def longest_answer(num_numbers: int, largest: int) -> int:
    """Characters of the longest canonical text over 2 to 4 numbers up to ``largest``, as in ``(10+9)*(8+7)`` and ``10/(9+8)``."""
    return num_numbers * len(str(largest)) + num_numbers - 1 + 2 * (num_numbers - 2)


def answer_text(completion: str) -> str:
    """The part of a completion that is graded, without surrounding ASCII white space."""
    end = completion.rfind(CLOSE_TAG)
    start = completion.rfind(OPEN_TAG, 0, end) if end >= 0 else -1
    if start >= 0:
        completion = completion[start + len(OPEN_TAG) : end]
    return completion.strip(ASCII_WHITESPACE)


def _refusal(text: str) -> str:
    """Why a text is not even parsed; empty when it may be. Takes time linear in ``MAX_LENGTH``."""
    if not text:
        return "empty"
    if len(text) > MAX_LENGTH:
        return "too_long"
    text = text.translate(_SIGNS)
    if not text.isascii():
        return "not_ascii"
    if any(character not in ALPHABET + ASCII_WHITESPACE + "=" for character in text):
        return "forbidden"
    if sum(character in "+-*/(" for character in text) > MAX_SYMBOLS:
        return "too_deep"
    return ""


def _parsed(text: str, result: str | None) -> tuple[ast.expr | None, str]:
    """The tree of an expression, or None and why there is none. ``result`` is what follows an equals sign."""
    if result is not None and not result.strip(ASCII_WHITESPACE).isdigit():
        return None, "syntax"
    try:
        tree = ast.parse(text.strip(ASCII_WHITESPACE), mode="eval").body
    except SyntaxError:
        return None, "syntax"
    return (tree, "") if _allowed(tree) else (None, "forbidden")


def _allowed(tree: ast.expr) -> bool:
    """Whether a tree is made of whole numbers, the four operations and minus signs."""
    match tree:
        case ast.Constant(value=value):
            return type(value) is int
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _allowed(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return _allowed(left) and _allowed(right)
        case _:
            return False


def _numbers(tree: ast.expr) -> Iterator[int]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, int))


def _evaluated(tree: ast.expr) -> Signed:
    """The normal form of an allowed tree, which knows its value.

    Raises:
        ZeroDivisionError: some part is divided by an expression of value 0.
    """
    match tree:
        case ast.UnaryOp(operand=operand):
            return negative(_evaluated(operand))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return total(_evaluated(left), negative(_evaluated(right)))
        case ast.BinOp(left=left, op=operation, right=right):
            return _OPERATIONS[type(operation)](_evaluated(left), _evaluated(right))
        case ast.Constant(value=int(value)):
            return number(value)
        case _:
            raise TypeError(f"{type(tree).__name__} is not an allowed part of an expression")


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value

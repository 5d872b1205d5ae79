"""What a model's text must look like before an evaluator may see it."""

from __future__ import annotations

import pytest

from maxent_grpo.rewards.plain import is_plain_formula, is_plain_literal

FORMULAS = ["1+2", "(3 - 4) * 5/6", "-x**2 + 3*x", "sin(x)/2 + C", "x**(1/2)", "2*exp(-x)", "pi*y", " 7 ", "1.5e3"]
NO_FORMULAS = [
    "__import__('os').system('true')",
    "x.__class__",
    "open('f')",
    "[1, 2]",
    "x[0]",
    "lambda: 0",
    "(1 if x else 2)",
    "'text'",
    "eval(x)",
    "sin(x, y)",
    "sin(x=1)",
    "log(*[1])",
    "9**9**9",
    "(9**99)**99",
    "9**999",
    "2**(2**9)",
    "1 + True",
    "x = 1",
    "x; y",
    "1,000",
    "",
    "3 +",
    "1" * 3000,
    "x" * 3000,
    "x\x00",
    "２+２",
    "f(x)",
    "subs",
    "x // 2",
    "x % 2",
    "(" * 500 + "1" + ")" * 500,
]
LITERALS = [
    "[['Q', '_'], ['_', 'Q']]",
    "(1, -2)",
    "'abc'",
    "['a','b']",
    "12",
    "ABCDE",
    "Q _\n_ Q",
    "not a literal at all",
]
NO_LITERALS = [
    "__import__('os')",
    "['a'] * 10**10",
    "[x for x in range(9)]",
    "''.join(['a'])",
    "exit()",
    "a.b",
    "{**x}",
    "f'{x}'",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_plain(text: str) -> None:
    assert is_plain_formula(text)


@pytest.mark.parametrize("text", NO_FORMULAS, ids=range(len(NO_FORMULAS)))
def test_whatever_else_reads_as_python_is_no_plain_formula(text: str) -> None:
    assert not is_plain_formula(text)


@pytest.mark.parametrize("text", LITERALS)
def test_literals_lone_names_and_prose_are_harmless(text: str) -> None:
    assert is_plain_literal(text)


@pytest.mark.parametrize("text", NO_LITERALS)
def test_calls_and_computations_are_no_literals(text: str) -> None:
    assert not is_plain_literal(text)

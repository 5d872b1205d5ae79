"""Which expressions are one solution, and that all solutions are found."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.properties import quick

from maxent_grpo.rewards.countdown import grade_expression
from maxent_grpo.rewards.expressions import Signed, negative, number, product, quotient, solutions, total

Tree = int | tuple[str, "Tree"] | tuple["Tree", str, "Tree"]
"""A number, a minus sign with its operand, or two operands with an operator between them."""
APPLY = {
    "+": total,
    "-": lambda left, right: total(left, negative(right)),
    "*": product,
    "/": quotient,
}
EXACT = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}


def form_of(tree: Tree) -> Signed:
    if isinstance(tree, int):
        return number(tree)
    if len(tree) == 2:
        return negative(form_of(tree[1]))
    return APPLY[tree[1]](form_of(tree[0]), form_of(tree[2]))


def value_of(tree: Tree) -> Fraction:
    """The value by plain arithmetic."""
    if isinstance(tree, int):
        return Fraction(tree)
    if len(tree) == 2:
        return -value_of(tree[1])
    return EXACT[tree[1]](value_of(tree[0]), value_of(tree[2]))


def read(text: str) -> Tree:
    """Text as a tree, by Python's own parser."""

    def convert(node: ast.expr) -> Tree:
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return ("-", convert(operand))
            case ast.BinOp(left=left, op=operation, right=right):
                symbol = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(operation)]
                return (convert(left), symbol, convert(right))
        raise AssertionError(ast.dump(node))

    return convert(ast.parse(text, mode="eval").body)


def key(text: str) -> str:
    return form_of(read(text)).key


@st.composite
def trees(draw: st.DrawFn, numbers: st.SearchStrategy[int], least: int = 2, most: int = 6) -> Tree:
    """A tree without division by zero, with minus signs here and there."""
    parts: list[Tree] = draw(st.lists(numbers, min_size=least, max_size=most))
    while len(parts) > 1:
        at = draw(st.integers(0, len(parts) - 2))
        left, right = parts[at : at + 2]
        symbols = "+-*/" if value_of(right) else "+-*"
        joined: Tree = (left, draw(st.sampled_from(symbols)), right)
        parts[at : at + 2] = [("-", joined) if draw(st.integers(0, 4)) == 0 else joined]
    return parts[0]


small = st.integers(1, 6)
thorough = settings(quick, max_examples=60)


def rewritten(tree: Tree, rng: random.Random) -> Tree:
    """The tree after one law, drawn from those that apply at its root: commutativity, associativity or a move of signs."""
    laws: list[Tree] = [tree, ("-", ("-", tree))]
    match tree:
        case (left, "+", right):
            laws += [(right, "+", left), (left, "-", ("-", right)), ("-", (("-", left), "-", right))]
            if isinstance(left, tuple) and len(left) == 3 and left[1] in "+-":
                laws.append(
                    (left[0], "+", (right, "-", left[2])) if left[1] == "-" else (left[0], "+", (left[2], "+", right))
                )
        case (left, "-", right):
            laws += [("-", (right, "-", left)), (("-", right), "+", left)]
            if isinstance(right, tuple) and len(right) == 3 and right[1] in "+-":
                laws.append(((left, "-", right[0]), "-" if right[1] == "+" else "+", right[2]))
        case (left, "*", right):
            laws += [(right, "*", left), (("-", left), "*", ("-", right)), ("-", (left, "*", ("-", right)))]
            if isinstance(right, tuple) and len(right) == 3 and right[1] in "*/":
                laws.append(((left, "*", right[0]), right[1], right[2]))
        case (left, "/", right):
            laws += [(("-", left), "/", ("-", right)), ("-", (left, "/", ("-", right)))]
            if isinstance(right, tuple) and len(right) == 3 and right[1] in "*/":
                laws.append(((left, "/", right[0]), "/" if right[1] == "*" else "*", right[2]))
            if isinstance(left, tuple) and len(left) == 3 and left[1] == "*":
                laws.append((left[0], "*", (left[2], "/", right)))
    return rng.choice(laws)


def rewritten_everywhere(tree: Tree, rng: random.Random) -> Tree:
    if isinstance(tree, tuple):
        tree = tuple(part if isinstance(part, str) else rewritten_everywhere(part, rng) for part in tree)
    return rewritten(tree, rng)


@thorough
@given(tree=trees(small), seed=st.integers(0, 2**32))
def test_laws_leave_the_key_as_it_is(tree: Tree, seed: int) -> None:
    rng = random.Random(seed)
    changed = tree
    for _ in range(4):
        changed = rewritten_everywhere(changed, rng)
    assert value_of(changed) == value_of(tree)
    assert form_of(changed).key == form_of(tree).key


@thorough
@given(tree=trees(small))
def test_a_key_is_an_expression_of_the_same_value_and_numbers_whose_key_it_is(tree: Tree) -> None:
    expression = form_of(tree)
    again = read(expression.key)
    assert expression.value == value_of(tree)
    assert value_of(again) == value_of(tree)
    assert form_of(again).key == expression.key
    assert sorted(leaves(again)) == sorted(leaves(tree))


def leaves(tree: Tree) -> Iterator[int]:
    if isinstance(tree, int):
        yield tree
    else:
        for part in tree:
            if not isinstance(part, str):
                yield from leaves(part)


LARGE = (104_729, 1_299_709, 15_485_863, 179_424_673)
"""Numbers between which no two different functions happen to have one value."""


@pytest.mark.parametrize(("count", "different"), [(2, 6), (3, 68), (4, 1170)])
def test_expressions_over_large_primes_have_one_key_exactly_if_they_have_one_value(count: int, different: int) -> None:
    """There, equal values mean equal functions of the numbers, which is what the laws amount to when each is used once."""
    pairs = {(form_of(tree).key, value_of(tree)) for tree in all_trees(LARGE[:count])}
    keys, values = zip(*pairs, strict=True)
    assert len(set(keys)) == len(set(values)) == len(pairs) == different  # OEIS A140606


def all_trees(numbers: tuple[int, ...]) -> Iterator[Tree]:
    """Every binary tree over the numbers in every order, division by zero aside; written without any regard to speed."""
    if len(numbers) == 1:
        yield numbers[0]
    for size in range(1, len(numbers)):
        for chosen in itertools.combinations(range(len(numbers)), size):
            rest = tuple(numbers[place] for place in range(len(numbers)) if place not in chosen)
            for left in all_trees(tuple(numbers[place] for place in chosen)):
                for right in all_trees(rest):
                    for symbol in "+-*/" if value_of(right) else "+-*":
                        yield (left, symbol, right)


@pytest.mark.parametrize("numbers", [(1, 1, 1), (1, 2, 3), (2, 2, 4), (3, 3, 8), (1, 5, 6), (2, 4, 12), (7, 11, 12)])
def test_three_numbers_have_exactly_the_solutions_of_all_trees(numbers: tuple[int, ...]) -> None:
    assert solutions(numbers, 1000) == solved_by_trees(numbers, 1000)


@pytest.mark.parametrize("numbers", [(1, 1, 2, 3), (3, 3, 8, 8)])
def test_four_numbers_have_exactly_the_solutions_of_all_trees(numbers: tuple[int, ...]) -> None:
    assert solutions(numbers, 24) == solved_by_trees(numbers, 24)


def solved_by_trees(numbers: tuple[int, ...], largest: int) -> dict[int, tuple[str, ...]]:
    found: dict[int, set[str]] = {}
    for tree in all_trees(numbers):
        value = value_of(tree)
        if value.denominator == 1 and 1 <= value <= largest:
            found.setdefault(int(value), set()).add(form_of(tree).key)
    return {target: tuple(sorted(found[target])) for target in sorted(found)}


@thorough
@given(tree=trees(small, least=3, most=4))
def test_minus_signs_reach_no_solution_beyond_the_listed_ones(tree: Tree) -> None:
    value, numbers = value_of(tree), tuple(sorted(leaves(tree)))
    assume(value > 0 and value.denominator == 1)
    listed = solutions(numbers, int(value))[int(value)]
    assert form_of(tree).key in listed
    for text in listed:
        assert grade_expression(text, numbers, int(value)).mode == text


def test_the_only_way_to_make_24_of_3_3_8_8() -> None:
    assert solutions((3, 3, 8, 8), 24)[24] == ("8/(3-8/3)",)


SAME = [
    ["3+4-5", "(3-5)+4", "4-(5-3)", "3-(5-4)", "-5+(3+4)", "-(5-3-4)"],
    ["(7-3)*2", "2*(7-3)", "-(3-7)*2", "-2*(3-7)"],
    ["6/(2/3)", "6*3/2", "3/2*6", "3/(2/6)", "6/2*3"],
    ["(5-2)*(4-6)", "(2-5)*(6-4)", "-((5-2)*(6-4))"],
    ["8*1", "8/1", "1*8"],
    ["8*(3-2)", "8/(3-2)", "(3-2)*8", "8/-(2-3)"],
    ["5+(3-3)", "5-(3-3)", "3+5-3"],
    ["5+2*(3-3)", "5-2*(3-3)", "5+(3-3)*2"],
    ["4-4", "-(4-4)", "-4+4"],
    ["3-2-1", "2+1-3", "-(3-2-1)"],
]


@pytest.mark.parametrize("texts", SAME, ids=lambda texts: texts[0])
def test_these_are_one_solution(texts: list[str]) -> None:
    assert len({key(text) for text in texts}) == 1


DIFFERENT = [
    ["2+2", "2*2"],
    ["(10+3)*1", "10*1+3", "10+3*1"],
    ["5+(3-2-1)", "5-(3-2-1)"],
    ["2*(3+4)", "2*3+4", "3*2+4*1"],
    ["6*2/3", "6/2*3", "6/(2*3)"],
    ["(4-2)*3", "(2-4)*3"],
    ["1/4", "4/1"],
]


@pytest.mark.parametrize("texts", DIFFERENT, ids=lambda texts: texts[0])
def test_these_are_different_solutions(texts: list[str]) -> None:
    assert len({key(text) for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("3+4*5", "5*4+3"),
        ("5*(3+4)", "(4+3)*5"),
        ("2-(7-9)", "9+2-7"),
        ("1/(2/(3-1))", "(3-1)*1/2"),
        ("3-4-5", "3-5-4"),
        ("-3-4", "-4-3"),
        ("3*(4-6)", "-3*(6-4)"),
    ],
)
def test_the_canonical_text_puts_larger_parts_first(text: str, canonical: str) -> None:
    assert key(text) == canonical


def test_dividing_by_an_expression_of_value_zero_is_an_error_at_any_depth() -> None:
    for text in ("5/(3-3)", "5/(2/(3-3))", "5/(2*(3-3))"):
        with pytest.raises(ZeroDivisionError):
            key(text)

"""The process in which math-verify and sympy read expressions: run as a script, never imported by the program.

It needs nothing else of this package. One line of JSON in, one line out. The program that listens forks a child to answer, so
that a child that dies (of its time limit, its memory limit, or anything else) is replaced in milliseconds, without importing
sympy again. Requests are ``{"id", "right", "text"}`` with ``right`` null when ``text`` is only to be read; replies are
``{"id", "status", "same", "key"}`` with status ``read``, ``unread`` or ``right_unread``, or ``{"died": exit status}``.

Nothing in a request is executed: only the LaTeX grammar reads it, sympy's parser, which evaluates text, gives way to one of
decimal numbers, and an audit hook ends every attempt to start a process, open a connection or write a file.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

DIED_OF_MEMORY = 3
LONGEST_KEY = 200
LARGEST_EXPANDED = 12
NUMBER = re.compile(r"[0-9]{1,400}(?:\.[0-9]{0,400})?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]{1,400}")
SIX_DIGITS = 5e-6
"""Relative difference within which a decimal stands for an irrational number."""
NOTHING = 1e-20
"""Relative difference of two numbers, computed to 30 digits, that are the same."""
WARM_UP = (
    ("x+\\frac{1}{2}", "\\sqrt{2}x+0.5"),
    ("x^2=1", "2x^2-2=0"),
    ("\\sqrt{8}", "2\\sqrt{2}"),
    ("\\sin x<1", "\\log_2 3+1"),
)
"""Texts that import what reading others needs and fill the grammar's tables, before the limits hold."""
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.kill",
    "os.remove",
    "os.rename",
    "os.rmdir",
)
FORBIDDEN_FAMILIES = ("subprocess.", "socket.", "shutil.", "ctypes.", "urllib.", "ftplib.", "smtplib.")


def main() -> None:
    """Answer requests on standard input until it closes; arguments: seconds of CPU per request, bytes of memory."""
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    replies = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # whatever a library prints is no reply
    os.dup2(nowhere, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = prepared()
    except ImportError as error:
        send(replies, {"failed": f"{type(error).__name__}: {error}"})
        return
    send(replies, {"ready": True})
    gc.freeze()
    while True:
        child = os.fork()
        if child == 0:
            serve(replies, answer, seconds, memory)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        send(replies, {"died": status})


def prepared() -> Callable[[str | None, str], dict[str, Any]]:
    """The function that answers, with everything imported that it may need and the library warmed up."""
    import latex2sympy2_extended.latex2sympy2 as grammar
    import math_verify.parser
    import sympy.parsing.sympy_parser

    for right, text in WARM_UP:
        answer(right, text)
    parsed.cache_clear()
    sympy.parsing.sympy_parser.parse_expr = plain_number  # what sympify and Number call for every text
    grammar.parse_expr = plain_number
    math_verify.parser.parse_expr = plain_number
    return answer


def plain_number(text: str, *arguments: Any, **options: Any) -> Any:
    """In place of sympy's parser, which evaluates what it reads: an unsigned decimal number, as an exact fraction.

    Raises:
        ValueError: the text is anything else.
    """
    import sympy

    if not NUMBER.fullmatch(text):
        raise ValueError("text is never evaluated")
    value = Fraction(text)
    return sympy.Rational(value.numerator, value.denominator)


def serve(replies: int, respond: Callable[[str | None, str], dict[str, Any]], seconds: float, memory: int) -> None:
    """Answer line by line within the limits; the timer's signal ends the process, in C code too."""
    sys.addaudithook(forbid)
    limit(resource.RLIMIT_AS, memory)
    limit(resource.RLIMIT_FSIZE, 0)
    limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    while line := receive():
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            reply = respond(request["right"], request["text"])
        except MemoryError:
            os._exit(DIED_OF_MEMORY)
        except Exception as error:  # the library meets texts it was not written for; it is counted by the one who asked
            reply = {"status": "failed", "same": False, "key": type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(replies, {"id": request["id"], **reply})


def limit(kind: int, amount: int) -> None:
    """Lower a limit of this process, where the system has that limit."""
    hard = resource.getrlimit(kind)[1]
    try:
        resource.setrlimit(kind, (amount if hard == resource.RLIM_INFINITY else min(amount, hard), hard))
    except (ValueError, OSError):
        if sys.platform == "linux":
            raise


def forbid(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: stop what reading mathematics never needs."""
    if event in FORBIDDEN or event.startswith(FORBIDDEN_FAMILIES):
        raise RuntimeError(f"{event} is not allowed here")
    if event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        raise RuntimeError("writing is not allowed here")


def receive() -> bytes:
    """The next line; empty at the end. The other side waits for each reply, so no more than one line is ever there."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            return b""
        line += piece
    return line


def send(descriptor: int, message: dict[str, Any]) -> None:
    """Write one line."""
    os.write(descriptor, json.dumps(message).encode() + b"\n")


def answer(right: str | None, text: str) -> dict[str, Any]:
    """Whether ``text`` is what ``right`` is, and the key of ``text``."""
    if right is not None and parsed(right) is None:
        return {"status": "right_unread", "same": False, "key": ""}
    expression = parsed(text)
    if expression is None:
        return {"status": "unread", "same": False, "key": ""}
    return {"status": "read", "same": right is not None and same(right, text), "key": key(text)}


@lru_cache(maxsize=512)
def parsed(text: str) -> Any:
    """The expression, equation or inequality that a text is; None when it is anything else."""
    import sympy
    from latex2sympy2_extended import NormalizationConfig
    from math_verify.parser import LatexExtractionConfig, parse

    # its own removal of units takes variables for them: 2c would be 2
    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="last")
    found = parse(
        "\\boxed{" + text + "}",
        [LatexExtractionConfig(boxed_match_priority=0, normalization_config=spelling)],
        fallback_mode="no_fallback",
        parsing_timeout=None,  # pyright: ignore[reportArgumentType]  its own limit needs the main thread; ours is the timer
    )
    if len(found) != 1 or not isinstance(found[0], sympy.Expr | sympy.core.relational.Relational):
        return None
    expression = imaginary(found[0])
    if expression.doit().has(sympy.nan, sympy.zoo):
        return None
    return expression


def imaginary(expression: Any) -> Any:
    """The expression with the letter i as the imaginary unit."""
    import sympy

    units = [symbol for symbol in expression.free_symbols if symbol.name == "i"]
    return expression.subs(dict.fromkeys(units, sympy.I)) if units else expression


def same(right: str, text: str) -> bool:
    """Whether two readable texts are the same number, expression, equation or inequality."""
    import sympy
    from math_verify import verify

    wanted, given = parsed(right), parsed(text)
    if differs_in_case(right, text):
        return False
    if is_relation(wanted) or is_relation(given):
        return is_relation(wanted) and is_relation(given) and same_relation(wanted, given)
    if wanted.free_symbols or given.free_symbols:
        return bool(verify(wanted, given, timeout_seconds=None))
    first, second = number(wanted), number(given)
    if first is None or second is None:
        return False
    decimal = "." in right or "." in text
    return bool(sympy.Abs(first - second) <= (SIX_DIGITS if decimal else NOTHING) * max(sympy.Abs(first), NOTHING))


def differs_in_case(right: str, text: str) -> bool:
    """Whether a letter of one text stands in the other in the other case only; the library reads both as one variable."""
    first, second = letters(right), letters(text)
    return any(letter not in second and letter.swapcase() in second for letter in first)


def letters(text: str) -> set[str]:
    """The letters of a text that belong to no command."""
    return set(re.sub(r"\\[A-Za-z]+|[^A-Za-z]", "", text))


def is_relation(expression: Any) -> bool:
    """Whether an expression is an equation or inequality."""
    import sympy

    return isinstance(expression, sympy.core.relational.Relational)


def same_relation(wanted: Any, given: Any) -> bool:
    """Whether one relation is the other times a number that is not zero, its sign turning an inequality round."""
    import sympy

    given_too = given.reversed
    for other in (given, given_too):
        if type(other) is not type(wanted):
            continue
        ratio = sympy.simplify((wanted.lhs - wanted.rhs).doit() / (other.lhs - other.rhs).doit())
        if ratio.is_number and ratio.is_finite and ratio != 0:
            return bool(ratio > 0) or isinstance(wanted, sympy.Eq | sympy.Ne)
    return False


def number(expression: Any) -> Any:
    """The value of an expression without variables, to 30 digits; None when it has none that is finite."""
    import sympy

    value = sympy.N(expression, 30)
    return value if value.is_number and value.is_finite else None


def key(text: str) -> str:
    """The canonical form of a readable text."""
    import sympy

    expression = parsed(text)
    if is_relation(expression):
        form = f"{type(expression).__name__}({expanded(expression.lhs - expression.rhs)})"
    elif expression.free_symbols:
        form = expanded(expression)
    else:
        exact = expression.doit()
        form = str(exact) if isinstance(exact, sympy.Rational) else str(sympy.N(exact, 12, chop=True))
    upper = "".join(sorted(filter(str.isupper, letters(text))))
    form = f"{form} {upper}" if upper else form
    return form if len(form) <= LONGEST_KEY else hashlib.sha256(form.encode()).hexdigest()


def expanded(expression: Any) -> str:
    """The expression multiplied out, unless a power in it is too high for that."""
    import sympy

    expression = expression.doit()
    powers = [power.exp for power in expression.atoms(sympy.Pow) if power.exp.is_Integer]
    return str(sympy.expand(expression) if all(abs(power) <= LARGEST_EXPANDED for power in powers) else expression)


if __name__ == "__main__":
    main()

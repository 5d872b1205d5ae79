"""How values and errors of the user's code are shown in a message."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable
from typing import Any

LONGEST_SHOWN = 300
"""Characters of a value or an error in a message."""


def shown(value: object) -> str:
    """A value, cut, and by its type where it cannot show itself."""
    try:
        return repr(value)[:LONGEST_SHOWN]
    except Exception:  # a user's object may raise anything
        return f"a {type(value).__name__}"


def raised(error: BaseException, function: Callable[..., Any]) -> str:
    """An error that came out of a call of ``function``, with the innermost line of the function's own file that it passed.

    What the file calls in turn, a library say, is not the user's to mend, nor is a decorator around the function.
    """
    file = _file_of(function)
    lines = [number for frame, number in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    if file is None or not lines:
        return shown(error)
    text = linecache.getline(file, lines[-1]).strip()
    return f"{shown(error)} at {file}:{lines[-1]}" + (f": `{text[:LONGEST_SHOWN]}`" if text else "")


def _file_of(function: Callable[..., Any]) -> str | None:
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return None if code is None else code.co_filename

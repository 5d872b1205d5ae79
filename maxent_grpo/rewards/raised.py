"""How values and errors of the user's code are shown in a message."""

from __future__ import annotations

import traceback
from types import TracebackType

LONGEST_SHOWN = 300
"""Characters of a value or an error in a message."""
_PACKAGE = "maxent_grpo."


def shown(value: object) -> str:
    """A value, cut, and by its type where it cannot show itself."""
    try:
        return repr(value)[:LONGEST_SHOWN]
    except Exception:  # a user's object may raise anything
        return f"a {type(value).__name__}"


def raised(error: BaseException) -> str:
    """An error with the line that it comes from, where there is one outside this package."""
    place = _outside(error.__traceback__)
    if place is None:
        return shown(error)
    line = f": `{place.line[:LONGEST_SHOWN]}`" if place.line else ""
    return f"{shown(error)} at {place.filename}:{place.lineno}{line}"


def _outside(trace: TracebackType | None) -> traceback.FrameSummary | None:
    """The innermost place in the file that this package called: what it calls in turn, a library say, is not the user's to mend."""
    first: str | None = None
    found: tuple[TracebackType, int] | None = None
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__"))
        if first is None and not module.startswith(_PACKAGE) and not _is_machinery(module):
            first = code.co_filename
        if first is not None and code.co_filename == first:
            found = trace, trace.tb_lineno
        trace = trace.tb_next
    if found is None:
        return None
    frame, number = found[0].tb_frame, found[1]
    return traceback.FrameSummary(frame.f_code.co_filename, number, frame.f_code.co_name)


def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in ("asyncio", "concurrent", "threading")

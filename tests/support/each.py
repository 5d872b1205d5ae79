"""One test over hundreds of trivial cases: all are tried, and each that fails is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def each_of(cases: Iterable[T], holds: Callable[[T], object], name: Callable[[T], object] = str) -> None:
    """Call ``holds`` on every case; fails, after the last, with the name and the error of every case that failed.

    Beside the assertions of its body, a test of a case costs a millisecond or more, which is much for hundreds of cases.
    """
    tried, failed = 0, list[str]()
    for case in cases:
        tried += 1
        try:
            holds(case)
        except Exception as error:  # of whatever kind, it is this case's failure and no reason to leave out the others
            failed.append(f"{name(case)}: {type(error).__name__}: {error}")
    assert tried, "there are no cases"
    assert not failed, f"{len(failed)} of {tried} cases fail:\n" + "\n".join(failed)

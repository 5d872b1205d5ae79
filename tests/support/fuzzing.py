"""Cases of a fuzz test: how many are tried, from which seed, and how long one may take.

Each test has a short form, run always, and a long one of the same code. Both try the same cases at every run;
``FUZZ_SEED=7 pytest tests/fuzz`` looks at others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

T = TypeVar("T")
SEED = int(os.environ.get("FUZZ_SEED", "0"))
PHASES = (Phase.generate, *([Phase.shrink] if "FUZZ_SHRINK" in os.environ else []))
"""The first case that fails is shown as it is; ``FUZZ_SHRINK=1`` looks for a smaller one, which can take minutes."""


def cases(*, short: int, long: int) -> pytest.MarkDecorator:
    """Parametrises ``num_cases``: few cases, and many with the mark of long forms."""
    return pytest.mark.parametrize(
        "num_cases", [pytest.param(short, id="short"), pytest.param(long, id="long", marks=pytest.mark.slow)]
    )


class TookTooLong(BaseException):
    """A case ran over its limit; no Exception, so that nothing under test can take it for one of its own."""


def try_cases(num_cases: int, drawn: st.SearchStrategy[T], check: Callable[[T], None], *, seconds: float) -> None:
    """Draw this many cases and check each within a time limit [seconds, wall clock]."""
    tried = 0

    @seed(SEED)
    @settings(
        max_examples=num_cases, deadline=None, database=None, report_multiple_bugs=False, phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(drawn)
    def each(case: T) -> None:
        nonlocal tried
        tried += 1
        with time_limit(seconds, case):
            check(case)

    each()
    assert tried >= num_cases


@contextmanager
def time_limit(seconds: float, case: object) -> Iterator[None]:
    """Break off what takes longer, also a loop without end or a wait."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise TookTooLong(f"longer than {seconds:g} s: {case!r}")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


JSON_NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([10**30, -1e300]),
)
JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), JSON_NUMBERS, st.text(max_size=12)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
"""What a line of JSON may hold."""

"""One row of the tables in tests/rewards/cases: what a grader must say of a text, checked by hand."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """``verdict``: ``right``, ``wrong``, or the reason why the text gives no answer."""

    text: str
    answer: str
    verdict: str
    why: str

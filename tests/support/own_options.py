"""Options that a test adds, taken back after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from maxent_grpo.config import own_modules
from maxent_grpo.config.declared import forget_options
from maxent_grpo.config.store import OPTIONS, register


@contextmanager
def options_taken_back() -> Iterator[None]:
    """For the time of the block options may be added and modules imported that add them; afterwards nothing knows of either."""
    before = list(OPTIONS)
    added, imported = own_modules._added_by, own_modules._imported  # pyright: ignore[reportPrivateUsage]
    known, there = dict(added), list(imported)
    try:
        yield
    finally:
        OPTIONS[:] = before
        imported[:] = there
        added.clear()
        added.update(known)
        register.cache_clear()
        forget_options()

"""Makes ``tests/support`` importable, and keeps the suite quick beside other work: one thread, no waiting for the disk."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_finish() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def files_need_not_outlive_the_machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leaves out ``os.fsync`` in the short form.

    A small run asks for it some thirty times, which on a usual disk takes as long as all that it computes. What it protects
    from is a machine that stops; a process that is killed, as in the tests of checkpoints, loses nothing that it has written.
    """
    if "not slow" not in request.config.option.markexpr:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield

"""One real server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runs import train
from support.vllm_policy import HAS_VLLM, NEEDS_VLLM, Asked, policy
from support.vllm_runs import JOINED

from maxent_grpo.training.generation.vllm.http import HttpEngine


@pytest.fixture(scope="package")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """The small policy and a server of its own, as a run starts it."""
    if not HAS_VLLM:
        pytest.skip(NEEDS_VLLM)
    made = Asked.start(policy(), tmp_path_factory.mktemp("server"))
    try:
        yield made
    finally:
        made.weights.close()


@pytest.fixture
def url(asked: Asked) -> str:
    """Where that server listens."""
    assert isinstance(asked.weights.engine, HttpEngine)
    return asked.weights.engine.place.urls[0]


@pytest.fixture(scope="module")
def untroubled(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run without any fault."""
    assert isinstance(asked.weights.engine, HttpEngine)
    run_dir = tmp_path_factory.mktemp("untroubled") / "run"
    train(run_dir, *JOINED, f"generation.vllm.url={asked.weights.engine.place.urls[0]}")
    return run_dir

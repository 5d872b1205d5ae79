"""One real server for all tests of a file that share it; `MAXENT_GRPO_TEST_VLLM_URL` names one that runs already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.vllm_policy import HAS_VLLM, NEEDS_VLLM, Asked, policy, server_options

from maxent_grpo.training.generation.vllm.build import LaunchedServer
from maxent_grpo.training.generation.vllm.http import HttpEngine, Server
from maxent_grpo.training.generation.vllm.weights import Snapshots
from maxent_grpo.training.types.generation import VLLMClientConfig


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedServer]:
    """A server of the small policy, started once."""
    if not HAS_VLLM:
        pytest.skip(NEEDS_VLLM)
    folder, loaded = tmp_path_factory.mktemp("server"), policy()
    snapshots = Snapshots(folder / "weights", loaded.model, loaded.tokenizer)
    server = LaunchedServer(snapshots, server_options(loaded), folder / "server.log", print)
    try:
        yield server
    finally:
        server.close()
        snapshots.remove()


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> str:
    """Where the server listens."""
    there = os.environ.get("MAXENT_GRPO_TEST_VLLM_URL")
    return there or request.getfixturevalue("launched").start()


@pytest.fixture(scope="module")
def asked(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """The small policy behind that server."""
    client = VLLMClientConfig(backoff=0.1, timeout=120)
    engine = HttpEngine([Server(url)], client, dict.fromkeys(["failed_requests"], 0), model_name="policy", max_in_flight=8)
    made = Asked.of(engine, policy(), tmp_path_factory.mktemp("weights") / "of_policy")
    yield made
    made.weights.close()


@pytest.fixture
def weights_folder(tmp_path: Path) -> Path:
    """A folder for snapshots."""
    return tmp_path / "weights"

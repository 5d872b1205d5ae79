"""Weights by vLLM's own transfer engines into a real server; stand-ins take the places of NCCL and CUDA, and of nothing else.

All in the long form, as vLLM itself is loaded on both sides and each way has a server of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import requests
from support.faulting_proxy import faulting
from support.vllm_policy import (
    HAS_VLLM,
    JOINS,
    NEEDS_VLLM,
    PROMPTS,
    Asked,
    assert_complete,
    moved,
    policy,
    server_processes,
    settings,
    token_lists,
)
from support.vllm_transfer import plugin_folder, stand_in

from maxent_grpo.config.generation import WeightTransfer
from maxent_grpo.errors import GenerationError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_VLLM, reason=NEEDS_VLLM)]

OWN = pytest.mark.skipif(JOINS, reason="a server was started by somebody else, and these are started in another way")
MEETING = {
    "nccl": ["/get_world_size", "/init_weight_transfer_engine"],
    "ipc": ["/init_weight_transfer_engine"],
}
UPDATES = {"nccl": ["/update_weights"], "ipc": ["/update_weights"] * 2}
"""A broadcast is one, however it is cut; memory is lent part by part."""


@pytest.fixture(scope="module", params=["nccl", "ipc"])
def way(request: pytest.FixtureRequest) -> str:
    """How weights travel."""
    return request.param


@pytest.fixture(scope="module")
def lent(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """The small policy and a server of its own that takes weights so."""
    plugin = plugin_folder(tmp_path_factory.mktemp("plugin") / "site")
    with pytest.MonkeyPatch.context() as patched, patch.dict(os.environ, plugin):
        stand_in(patched.setattr)
        made = Asked.start(policy(), tmp_path_factory.mktemp("server"), WeightTransfer(way))
        try:
            yield made
        finally:
            made.weights.close()


def follow(lent: Asked, url: str) -> None:
    """Ask there from now on."""
    lent.weights.engine.follow(lent.weights.engine.place._replace(urls=(url,)))


@OWN
def test_weights_arrive_in_this_order_of_requests(lent: Asked, way: str) -> None:
    [url] = lent.weights.engine.place.urls
    with faulting(url) as proxy:
        follow(lent, proxy.url)
        for version in (1, 2):
            moved(lent.loaded, version)
            lent.weights.bring(version)  # and compare log-probabilities with the trainer's
            assert proxy.order == [
                "/pause",
                "/update_weight_version",
                *(MEETING[way] if version == 1 else []),
                "/start_weight_update",
                *UPDATES[way],
                "/finish_weight_update",
                "/reset_prefix_cache",
                "/update_weight_version",
                "/resume",
                "/v1/completions",
            ]
            proxy.order.clear()
    follow(lent, url)
    said = requests.get(f"{url}/weight_info", timeout=60).json()["weight_version"]
    assert said.endswith("-2")
    assert_complete(*lent.sampler(settings())(list(PROMPTS), 4), 4)


@OWN
def test_weights_that_did_not_come_whole_are_never_sampled_from(lent: Asked) -> None:
    """Half a model ends vLLM's engine at its next request, and a server that is started for it has other weights."""
    [url] = lent.weights.engine.place.urls
    with faulting(url) as proxy:
        proxy.swallowed.add("/finish_weight_update")  # the server never hears of it
        follow(lent, proxy.url)
        moved(lent.loaded, 5)
        with pytest.raises(GenerationError, match=r"status 500|no connection|it computes with other weights"):
            lent.weights.bring(3)
    assert lent.weights.version == 2


@OWN
def test_a_server_that_is_started_anew_is_met_again(lent: Asked) -> None:
    moved(lent.loaded, 6)
    lent.weights.bring(4)
    [later] = lent.weights.engine.place.urls
    chosen = settings(length=40)
    before = token_lists(lent.sampler(chosen, seed=8)(list(PROMPTS), 4)[1])
    for process in server_processes(later):
        process.kill()
    assert token_lists(lent.sampler(chosen, seed=8)(list(PROMPTS), 4)[1]) == before
    assert lent.weights.engine.place.urls != (later,)


def test_a_server_that_was_started_without_it_says_how_to_start_it(
    asked: Asked, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the way, the server goes on as it was."""
    stand_in(monkeypatch.setattr)
    for way in (WeightTransfer.nccl, WeightTransfer.ipc):
        other = Asked.start(policy(), tmp_path, way, url=url, max_retries=1)
        with pytest.raises(
            GenerationError, match=f"generation.weight_transfer={way}: {url} was started without it; start"
        ):
            other.weights.bring(0)
        other.weights.close()
    moved(asked.loaded, 4)
    asked.weights.bring(1 + (asked.weights.version or 0))
    assert_complete(*asked.sampler(settings())(list(PROMPTS), 2), 2)

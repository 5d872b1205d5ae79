"""vLLM behind HTTP: one or several servers, joined or started here, asked in parallel and asked again when they fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import requests

from maxent_grpo.errors import GenerationError, MaxentGrpoError
from maxent_grpo.training.generation.vllm import transport
from maxent_grpo.training.generation.vllm.ask import Answer, Ask, BadAnswerError, read_answers
from maxent_grpo.training.generation.vllm.carriers import Carrier
from maxent_grpo.training.generation.vllm.engine import Place
from maxent_grpo.training.generation.vllm.transport import RefusedError
from maxent_grpo.training.generation.vllm.waiters import Waiters
from maxent_grpo.training.types.generation import VLLMClientConfig

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Longest that a request may take which only tidies up."""


@dataclass
class Server:
    """One server and what is known of it."""

    url: str
    model: str
    """What it calls the model."""
    num_running: int = 0
    """Requests that it has been sent and has not answered."""
    num_failed: int = 0
    """Requests that failed since it was last given weights: while others do better it is asked less."""
    turn: int = 0
    """Of servers that are equally busy the one with the lowest is asked."""
    restart: Callable[[], str] | None = None
    """Starts it anew if it has ended and returns where it listens; None for a server that is not ours."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is given weights or started."""


class HttpEngine:
    """Several servers as one engine; see ``Engine``."""

    def __init__(
        self,
        servers: Sequence[Server],
        client: VLLMClientConfig,
        stats: dict[str, int],
        *,
        carrier: Carrier | None,
        run: str,
        max_in_flight: int,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Know the servers, and ask nothing yet.

        ``carrier``: brings them weights; None where another process does. ``run``: begins the names of versions, since a joined
        server may still say a step of another run.
        """
        self._servers = list(servers)
        self._client, self._stats = client, stats
        self._pool = Waiters(max_in_flight)
        self._choosing, self._counting = threading.Lock(), threading.Lock()
        self._carrier, self._run = carrier, run
        self._loaded: int | None = None
        self._num_given = 0
        self._asked: list[Future[list[Answer] | None]] = []
        self._last_warning = self.last_failure = ""
        self._close = close
        self._is_closed = threading.Event()

    @property
    def place(self) -> Place:
        """Where the servers listen now; one that is started anew moves; see ``Engine``."""
        return Place(tuple(server.url for server in self._servers), self._num_given)

    def complete(self, asks: Sequence[Ask], version: int, *, partly: bool = False) -> list[list[Answer] | None]:
        """The completions of each ask, in order; see ``Engine``."""
        given_up = threading.Event()
        pending = self._submit(asks, version, given_up, partly=partly)
        try:
            return [future.result() for future in pending]
        finally:
            given_up.set()

    def begin(self, asks: Sequence[Ask], version: int, *, partly: bool = False) -> list[Future[list[Answer] | None]]:
        """Send the asks, and leave the answers to threads that do nothing but wait for them; see ``Engine``."""
        return self._submit(asks, version, threading.Event(), partly=partly)

    def _submit(
        self, asks: Sequence[Ask], version: int, given_up: threading.Event, *, partly: bool
    ) -> list[Future[list[Answer] | None]]:
        """The answers to come; once one ask has failed for good, those that wait behind it are not sent any more."""

        def one(ask: Ask) -> list[Answer] | None:
            if given_up.is_set():
                return None
            try:
                return self._complete_one(ask, version)
            except GenerationError as error:
                self.last_failure = str(error)
                given_up.set()
                if not partly or isinstance(error, RefusedError):
                    raise
                return None

        pending = [self._pool.submit(partial(one, ask)) for ask in asks]
        self._asked = [*(future for future in self._asked if not future.done()), *pending]
        return pending

    def settle(self) -> None:
        """Wait for every answer or failure; see ``Engine``."""
        wait(self._asked)

    def load(self, version: int) -> None:
        """Give every server the weights, all or none at a time; see ``Engine``. What is in flight ends with the old ones first."""
        self.settle()
        self._loaded = version
        if self._carrier is None:
            return
        self._carrier.prepare(version)
        for future in [self._pool.submit(partial(self._load_with_retries, server)) for server in self._servers]:
            future.result()

    def renew(self) -> Place:
        """See to each server once; what a request would say anyhow of one that is not ours is left to it; see ``Engine``."""
        for server in self._servers:
            with suppress(requests.RequestException, BadAnswerError):
                self._revive(server)
                if self._loaded is not None and not self._has_version(server, self._loaded):
                    self._load_again(server, self._loaded)
        return self.place

    def follow(self, place: Place) -> None:
        """Ask the same servers where they listen now; see ``Engine``."""
        for server, url in zip(self._servers, place.urls, strict=True):
            server.url = url

    def prompt_logp(self, token_ids: Sequence[int]) -> dict[str, list[float]]:
        """Of each server; see ``Engine``."""
        return {server.url: self._prompt_logp(server, token_ids) for server in self._servers}

    def close(self) -> None:
        """Stop asking, and the servers that were started here."""
        self._is_closed.set()
        self._pool.close()
        if self._carrier is not None:
            self._carrier.close()
        self._close()

    def _complete_one(self, ask: Ask, version: int) -> list[Answer]:
        def attempt(server: Server) -> list[Answer]:
            if not self._has_version(server, version):
                self._load_again(server, version)
            body = self._post(server, "/v1/completions", self._completion_request(server, ask))
            answers = read_answers(body, ask)
            # a server that started anew in between has other weights: what it gave is not the policy's
            if not self._has_version(server, version):
                raise BadAnswerError(f"the server lost the weights of version {version} while it sampled")
            return answers

        return self._with_retries(attempt, f"the completions of row {ask.row_id!r}")

    def _completion_request(self, server: Server, ask: Ask) -> dict[str, Any]:
        request = {
            "model": server.model,
            "prompt": list(ask.prompt_ids),
            "return_token_ids": True,
            **ask.parameters,
        }
        if self._client.request_id_prefix is not None:
            request["request_id"] = f"{self._client.request_id_prefix}{uuid4().hex}"
        return request

    def _prompt_logp(self, server: Server, token_ids: Sequence[int]) -> list[float]:
        request = {
            "model": server.model, "prompt": list(token_ids), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0,
        }  # fmt: skip

        def attempt(chosen: Server) -> list[float]:
            body = self._post(server, "/v1/completions", request)
            try:
                given = body["choices"][0]["prompt_logprobs"]
                return [
                    float(place[str(token)]["logprob"]) for place, token in zip(given[1:], token_ids[1:], strict=True)
                ]
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise BadAnswerError("the answer has no log-probability for each token of the prompt") from error

        return self._with_retries(attempt, "the log-probabilities of the probe", only=server)

    def _has_version(self, server: Server, version: int) -> bool:
        """Whether the server has those weights; not asked of servers that are never given any."""
        return not self._client.sync_weights or self._version(server) == self._named(version)

    def _version(self, server: Server) -> str:
        body = self._get(server, "/weight_info")
        if not isinstance(body, dict) or "weight_version" not in body:
            raise BadAnswerError("the server does not say which weights it has")
        return str(body["weight_version"])

    def _named(self, version: int) -> str:
        """What a server calls the weights of that version."""
        return f"{self._run}-{version}"

    def _load_again(self, server: Server, version: int) -> None:
        if self._carrier is None:
            raise BadAnswerError(f"the server has not the weights of version {version}")
        with server.lock:
            if self._loaded is None or self._has_version(server, version):
                return
            logger.warning("%s lost the weights of version %d and is given them again", server.url, version)
            self._give(server, self._carrier, self._loaded)

    def _load_with_retries(self, server: Server) -> None:
        def attempt(chosen: Server) -> None:
            assert self._carrier is not None
            assert self._loaded is not None
            with server.lock:
                self._give(server, self._carrier, self._loaded)

        self._with_retries(attempt, "new weights", only=server)

    def _give(self, server: Server, carrier: Carrier, version: int) -> None:
        """Nothing is sampled while weights change, and the version is told last: half-given weights have no version."""
        self._post(server, "/pause?mode=wait", None)
        try:
            self._post(server, "/update_weight_version", {"new_version": "loading"})
            carrier.carry(server.url, partial(self._post, server))
            self._post(server, "/reset_prefix_cache", None)
            self._post(server, "/update_weight_version", {"new_version": self._named(version)})
        except (requests.RequestException, MaxentGrpoError) as error:
            # what went wrong first is told, and decides what follows; where that is the end, a server that hangs is not waited for
            timeout = CLOSE_SECONDS if isinstance(error, GenerationError) else self._client.timeout
            with suppress(requests.RequestException, MaxentGrpoError):
                transport.content(transport.post(f"{server.url}/resume", None, timeout=timeout))
            raise
        self._post(server, "/resume", None)
        server.num_failed = 0
        self._num_given += 1

    def _with_retries(self, attempt: Callable[[Server], Any], what: str, only: Server | None = None) -> Any:
        """``attempt`` with the least busy server, again after a growing pause while that may help.

        Raises:
            GenerationError: refused, or failed once more than ``max_retries`` allow.
        """
        client = self._client
        pause = client.backoff
        for failures in range(client.max_retries + 1):
            server = self._take() if only is None else only
            try:
                return attempt(server)
            except (requests.RequestException, BadAnswerError) as error:
                self._count_failure(server)
                reason = f"{server.url}: {transport.reason(error)}"
                if failures == client.max_retries:
                    raise GenerationError(
                        f"vLLM did not deliver {what}: {failures + 1} attempts failed, the last at {reason}. See the server's "
                        "log; generation.vllm.max_retries and generation.vllm.timeout set how long it is tried"
                    ) from error
                self._warn_once(reason, pause)
                if self._is_closed.wait(pause):
                    raise GenerationError(f"vLLM did not deliver {what}: the run is ending") from error
                pause *= client.backoff_multiplier
                self._revive(server)
            finally:
                if only is None:
                    self._give_back(server)
        raise AssertionError("the loop returns or raises")

    def _warn_once(self, reason: str, pause: float) -> None:
        """One line for a fault that many requests meet at the same time."""
        with self._counting:
            is_new, self._last_warning = reason != self._last_warning, reason
        if is_new:
            logger.warning("vLLM failed (%s); trying again after %.1f s", reason, pause)

    def _revive(self, server: Server) -> None:
        if server.restart is None:
            return
        with server.lock:
            server.url = server.restart()

    def _take(self) -> Server:
        with self._choosing:
            server = min(self._servers, key=lambda server: (server.num_failed, server.num_running, server.turn))
            server.num_running += 1
            return server

    def _give_back(self, server: Server) -> None:
        with self._choosing:
            server.num_running -= 1

    def _count_failure(self, server: Server) -> None:
        with self._counting:
            server.num_failed += 1
            self._stats["failed_requests"] += 1

    def _post(self, server: Server, path: str, body: dict[str, Any] | None) -> Any:
        return transport.content(transport.post(f"{server.url}{path}", body, timeout=self._client.timeout))

    def _get(self, server: Server, path: str) -> Any:
        return transport.content(transport.get(f"{server.url}{path}", timeout=self._client.timeout))

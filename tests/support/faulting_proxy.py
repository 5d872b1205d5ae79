"""A server in front of a real one that passes everything on, but for what it is told to spoil."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests

COMPLETIONS = "/v1/completions"

Spoil = Callable[[int], str | None]
"""From the number of a request for completions, from 0, to what goes wrong with it, if anything."""


class FaultingProxy(ThreadingHTTPServer):
    """Listens on loopback.

    Faults: ``500``, ``garbage``, ``truncated``, ``short`` (one completion too few), ``no_logprobs`` (of the first completion),
    ``cut`` (the connection ends without an answer), ``hang`` (no answer until the proxy is closed), ``before:NAME`` (the
    action of that name is done before the request is passed on).
    """

    daemon_threads = True

    def __init__(self, upstream: str, spoil: Spoil = lambda number: None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.upstream, self.spoil = upstream, spoil
        self.swallowed: set[str] = set()
        """Paths that are answered at once and not passed on."""
        self.actions: dict[str, Callable[[], object]] = {}
        self.seen: Counter[str] = Counter()
        """Requests by path, faults by name."""
        self.order: list[str] = []
        """Paths, as they came."""
        self.in_flight = self.most_in_flight = 0
        self.lock, self.closing = threading.Lock(), threading.Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def faulting(upstream: str, spoil: Spoil = lambda number: None, port: int = 0) -> Iterator[FaultingProxy]:
    """A proxy for the time of the block."""
    with FaultingProxy(upstream, spoil, port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.closing.set()
            proxy.shutdown()
            thread.join()


@contextmanager
def refusing(upstream: str, after: int, seconds: float) -> Iterator[str]:
    """The address of a proxy that breaks off a request for completions, then refuses connections for a while."""
    ended = threading.Event()

    def outage(first: FaultingProxy) -> None:
        first.shutdown()
        first.server_close()
        ended.wait(seconds)
        with faulting(upstream, port=first.server_address[1]):
            ended.wait()

    with FaultingProxy(upstream, lambda number: "before:outage" if number == after else None) as first:
        breaks = threading.Thread(target=outage, args=(first,), daemon=True)

        def begin() -> None:
            breaks.start()
            breaks.join(0.5)
            raise ConnectionAbortedError

        first.actions["outage"] = begin
        threading.Thread(target=first.serve_forever, args=(0.02,), daemon=True).start()
        yield first.url
        ended.set()
        breaks.join()


class _Handler(BaseHTTPRequestHandler):
    server: FaultingProxy

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        self._pass_on("GET", b"")

    def do_POST(self) -> None:
        self._pass_on("POST", self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _pass_on(self, method: str, body: bytes) -> None:
        proxy, fault = self.server, None
        with proxy.lock:
            path = self.path.partition("?")[0]
            # the probe's log-probabilities of a prompt are no completions to train on
            samples = path == COMPLETIONS and b"prompt_logprobs" not in body
            if samples:
                fault = proxy.spoil(proxy.seen["samples"])
            proxy.seen.update([path, *(["samples"] if samples else []), *([fault] if fault else [])])
            proxy.order.append(path)
            proxy.in_flight += samples
            proxy.most_in_flight = max(proxy.most_in_flight, proxy.in_flight)
        try:
            self._answer(method, body, fault)
        except ConnectionAbortedError:
            self.close_connection = True
        finally:
            with proxy.lock:
                proxy.in_flight -= samples

    def _answer(self, method: str, body: bytes, fault: str | None) -> None:
        if fault == "hang":
            self.server.closing.wait()
            self.close_connection = True
            return
        if fault == "cut":
            self.close_connection = True
            return
        if self.path.partition("?")[0] in self.server.swallowed:
            self._send(200, b"{}")
            return
        if fault == "500":
            self._send(500, b"something broke")
            return
        if fault is not None and fault.startswith("before:"):
            self.server.actions[fault.removeprefix("before:")]()
        headers = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
        given = requests.request(method, f"{self.server.upstream}{self.path}", data=body, headers=headers, timeout=300)
        self._send(given.status_code, _spoilt(given.content, fault))

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _spoilt(body: bytes, fault: str | None) -> bytes:
    if fault == "garbage":
        return b"<html>not an answer</html>"
    if fault == "truncated":
        return body[: len(body) // 2]
    if fault in ("short", "no_logprobs"):
        answer = json.loads(body)
        if fault == "short":
            answer["choices"] = answer["choices"][:-1]
        else:
            answer["choices"][0]["logprobs"] = None
        return json.dumps(answer).encode()
    return body

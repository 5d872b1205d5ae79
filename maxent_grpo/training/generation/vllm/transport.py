"""Requests to servers of vLLM: straight to them, whatever proxy the environment names for the world outside."""

from __future__ import annotations

import socket
from typing import Any

import requests

from maxent_grpo.errors import GenerationError
from maxent_grpo.training.generation.vllm.ask import BadAnswerError

TOO_BUSY, SERVER_FAULT = 429, 500
"""HTTP statuses from which on a request may be sent again: busy, and every fault of the server's own."""
TEXT_SHOWN = 300


class RefusedError(GenerationError):
    """The server understood the request and will never answer it."""


def get(url: str, *, timeout: float) -> requests.Response:
    """The answer to a GET; raises ``requests.RequestException``."""
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=timeout)


def post(url: str, body: dict[str, Any] | None, *, timeout: float) -> requests.Response:
    """The answer to a POST of JSON; raises ``requests.RequestException``."""
    with requests.Session() as session:
        session.trust_env = False
        return session.post(url, json=body, timeout=timeout)


def free_port(address: str) -> int:
    """A port of this machine that nobody listens at, under one of its addresses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def content(response: requests.Response) -> Any:
    """What an answer says, None if nothing.

    Raises:
        BadAnswerError: the server is busy or failed, or its answer is not JSON.
        RefusedError: it refused the request.
    """
    if response.status_code == TOO_BUSY or response.status_code >= SERVER_FAULT:
        raise BadAnswerError(f"status {response.status_code}: {response.text[:TEXT_SHOWN]}")
    if not response.ok:
        raise RefusedError(
            f"vLLM refused a request at {response.url} with status {response.status_code}: {response.text[:TEXT_SHOWN]}"
        )
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise BadAnswerError("the answer is not JSON") from error


def reason(error: Exception) -> str:
    """Why a request failed, in a few words."""
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection, or it broke off"
    said = str(error).strip() or type(error).__name__  # a library may raise without a word
    return said.splitlines()[0][:TEXT_SHOWN]

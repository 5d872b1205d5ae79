"""Requests to servers of vLLM: straight to them, whatever proxy the environment names for the world outside."""

from __future__ import annotations

from typing import Any

import requests


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

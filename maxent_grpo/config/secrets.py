"""What must not be written down: passwords in addresses, keys by their shape, and the values of secret environment variables.

A run keeps its settings in files that are shared. There a secret is replaced by ``MARK``, which a setting cannot be used with:
whoever continues the run says the secret again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, cast

MARK = "*secret*"
"""Stands where a secret stood; Hydra reads it in an unquoted value."""
SHORTEST = 8
"""Characters of an environment variable's value below which it may be an ordinary word."""
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:(?:API|ACCESS|SECRET|PRIVATE|AUTH)_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s'\"<>]+@")
_KEY_SHAPE = re.compile(
    r"\bhf_[A-Za-z0-9]{12,}"
    r"|\bsk-[\w-]{12,}"
    r"|\b(?:gh[opsur]|github_pat|glpat)[_-][\w-]{12,}"
    r"|\bxox[abeprs]-[\w-]{12,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\bwandb_v\d+_\w{12,}"
)
_NAMED = r"(?:api_?key|secret|password|passwd|(?:access|auth|hub|hf|bearer)_?token)"
_ASSIGNED = re.compile(rf"(?i)({_NAMED}\w*['\"]?\s*[:=]\s*)(['\"])([^'\"]{{{SHORTEST},}})\2")
_ARGUMENT = re.compile(rf"(?i)^([^=]*{_NAMED}\w*=)(.+)$")


def redacted(text: str) -> str:
    """The text with ``MARK`` for every secret in it.

    Secret are a user and password before a host, what has the shape of a key of a well-known service, and the value of every
    environment variable whose name says that it is one, such as ``HF_TOKEN``.
    """
    for value in _secret_values():
        text = text.replace(value, MARK)
    return _KEY_SHAPE.sub(MARK, _IN_ADDRESS.sub(f"{MARK}@", text))


def redacted_word(word: str) -> str:
    """A word of a command line as ``redacted`` makes it, without the value of anything that is called a key or password."""
    return _ARGUMENT.sub(rf"\g<1>{MARK}", redacted(word))


def holds_secret(code: str) -> bool:
    """Whether a text of source code holds what ``redacted`` leaves out, or a long value of something called a key or password."""
    return _ASSIGNED.search(code) is not None or redacted(code) != code


def redacted_tree(value: Any) -> Any:
    """Nested plain values with ``redacted`` texts; keys stay."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {name: redacted_tree(item) for name, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list):
        return [redacted_tree(item) for item in cast(list[Any], value)]
    return value


def lost_secrets(values: Iterable[tuple[str, object]]) -> list[str]:
    """The sentence of each setting, given as (dotted path, value), that holds ``MARK`` where a secret was."""
    return [
        f"{path}={value}: a run's files keep no secrets, and {MARK} stands for one; write {path}=... with it"
        for path, value in values
        if MARK in str(value)
    ]


def _secret_values() -> list[str]:
    """Longest first, so that one inside another leaves nothing of that."""
    found = {
        value for name, value in os.environ.items() if len(value) >= SHORTEST and _SECRET_NAME.search(name) is not None
    }
    return sorted(found, key=len, reverse=True)

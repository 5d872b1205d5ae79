"""The checkout that the code runs from: its commit, how the files differ from it, and the names of files that git does not know.

Nothing of a remote is asked or kept. What git says is read once in a process, whose code is loaded once as well.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from maxent_grpo.config.secrets import holds_secret

PACKAGE = Path(__file__).resolve().parents[1]
MAX_DIFF = 2**20
"""Largest difference that is kept [bytes]; a cut one could not be applied, so that of a larger one the names are kept."""
MAX_NAMES = 200
"""Most names of files in a list; more are counted."""
SECONDS = 20.0
"""Time that git is given for one answer [s]."""
_FILE = re.compile(r"^diff --git ", re.MULTILINE)
_KEY_FILES = re.compile(r"(^|/)(\.env(\.\w+)?|\.netrc|id_\w+|[^/]*\.(pem|key|p12|pfx))$")


class _NoAnswer(Exception):
    """Git is not there, refused, or took too long; the message says which."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """What is kept of a checkout."""

    facts: dict[str, Any]
    """`is_checkout`, and the reason where it is False; else commit, branch, names of changed and of untracked files, and `diff_left_out`, file to reason."""
    diff: bytes = b""
    """What `git apply` makes the working tree of, on top of the commit; empty where nothing differs, or it is left out."""


@cache
def current_checkout() -> Checkout:
    """The checkout of this package, as this process found it first."""
    return read_checkout(PACKAGE)


def read_checkout(package: Path) -> Checkout:
    """The checkout that tracks the package in a folder.

    A package that lies in somebody's repository without being tracked there, as in a virtual environment, is no checkout.
    """
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        root = Path(_git(package, "rev-parse", "--show-toplevel").rstrip("\n"))
        commit = _git(root, "rev-parse", "--verify", "HEAD").strip()
        branch = _git(root, "rev-parse", "--abbrev-ref", "HEAD").strip()
        changed = _names(_git(root, "diff", "--name-only", "-z", "HEAD"))
        untracked = _names(_git(root, "ls-files", "--others", "--exclude-standard", "-z"))
        diff, left_out = _difference(root, changed)
    except _NoAnswer as error:
        return Checkout({"is_checkout": False, "reason": str(error)})
    facts = {
        "is_checkout": True,
        "commit": commit,
        "branch": None if branch == "HEAD" else branch,
        "changed": _shortened(changed),
        "untracked": _shortened(untracked),
        "diff_left_out": left_out,
    }
    return Checkout(facts, diff)


def _difference(root: Path, changed: list[str]) -> tuple[bytes, dict[str, str]]:
    """The difference against the commit without what must not, or cannot, be kept; and why files are missing in it."""
    if not changed:
        return b"", {}
    raw = _output(
        root, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--full-index",
        "--src-prefix=a/", "--dst-prefix=b/", "HEAD", most=MAX_DIFF,
    )  # fmt: skip
    if raw is None:
        return b"", {"(all)": f"the difference is larger than {MAX_DIFF} bytes"}
    # one character a byte, so that what is kept is what git wrote
    text = raw.decode("latin-1")
    starts = [match.start() for match in _FILE.finditer(text)] + [len(text)]
    parts = [text[first:last] for first, last in pairwise(starts)]
    if len(parts) != len(changed):
        return b"", {"(all)": "files changed while the difference was read"}
    kept, left_out = [], {}
    for name, part in zip(changed, parts, strict=True):
        reason = _reason(name, part)
        if reason:
            left_out[name] = reason
        else:
            kept.append(part)
    return "".join(kept).encode("latin-1"), left_out


def _reason(name: str, part: str) -> str:
    """Why the difference of a file is not kept; empty if it is."""
    if _KEY_FILES.search(name):
        return "a file of this name holds keys"
    if holds_secret(part.encode("latin-1").decode("utf-8", "replace")):
        return "something in it looks like a key or a password"
    if re.search(r"^Binary files .* differ$", part, re.MULTILINE) and "\n@@ " not in part:
        return "binary"
    return ""


def _names(text: str) -> list[str]:
    return [name for name in text.split("\0") if name]


def _shortened(names: list[str]) -> list[str]:
    left = len(names) - MAX_NAMES
    return [*names[:MAX_NAMES], *([f"... and {left} more"] if left > 0 else [])]


def _git(folder: Path, *arguments: str) -> str:
    output = _output(folder, *arguments, most=16 * MAX_DIFF)
    if output is None:
        raise _NoAnswer(f"git {arguments[0]} says more than can be read")
    return output.decode("utf-8", "replace")


def _output(folder: Path, *arguments: str, most: int) -> bytes | None:
    """What git writes; None for more than ``most`` bytes.

    Raises:
        _NoAnswer: git is missing, took too long, or ended with an error.
    """
    # a hook or a rebase around this process would point git at another repository
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "-C", str(folder), *arguments]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
    except OSError as error:
        raise _NoAnswer(f"git cannot be started ({error.strerror})") from error
    late = threading.Event()
    timer = threading.Timer(SECONDS, lambda: (late.set(), process.kill()))
    timer.start()
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        output = process.stdout.read(most + 1)
        if len(output) > most:
            process.kill()
            return None
        complaint = process.stderr.read().decode("utf-8", "replace").strip()
        if process.wait() == 0:
            return output
    finally:
        timer.cancel()
        process.kill()
        process.communicate()
    if late.is_set():
        raise _NoAnswer(f"git {arguments[0]} took longer than {SECONDS:g} s")
    raise _NoAnswer(complaint.splitlines()[0] if complaint else f"git {arguments[0]} failed")

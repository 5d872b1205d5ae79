"""How the policy's weights get into a server that is paused for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from maxent_grpo.training.generation.vllm.weights import Snapshots

Post = Callable[[str, dict[str, Any] | None], Any]
"""Sends JSON to a path of one server and gives what it answers; raises as ``transport`` does."""


class Carrier(Protocol):
    """A way for weights. Nothing is sampled while it is taken, and the server has a version again only after it."""

    def prepare(self, version: int) -> None:
        """Make ready what the servers are then given one after the other: the policy as it is now."""
        ...

    def carry(self, url: str, post: Post) -> None:
        """Bring it to the server that listens at ``url``.

        Raises:
            GenerationError: this server will not take it.
            BadAnswerError, requests.RequestException: it may be tried again.
        """
        ...

    def close(self) -> None:
        """Let go of what was opened."""
        ...


class Reload:
    """Through a file: the server reads a snapshot of the policy. Works on every device."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._folder: Path | None = None

    def prepare(self, version: int) -> None:
        """Write the snapshot; see ``Carrier``."""
        self._folder = self._snapshots.write(version)

    def carry(self, url: str, post: Post) -> None:
        """Have it read; see ``Carrier``."""
        assert self._folder is not None, "prepare comes first"
        post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(self._folder)}})

    def close(self) -> None:
        """Nothing is open; the snapshots have an owner."""

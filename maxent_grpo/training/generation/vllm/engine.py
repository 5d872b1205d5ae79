"""What the sampler needs of vLLM, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from maxent_grpo.training.generation.vllm.ask import Answer, Ask


class Engine(Protocol):
    """A running vLLM. Every call either does what it says or raises; what raises ``GenerationError`` was tried often enough."""

    def complete(self, asks: Sequence[Ask], version: int, *, partly: bool = False) -> list[list[Answer] | None]:
        """The completions of each ask, made by weights of that version and no other.

        ``partly`` gives None where an ask was tried often enough, and for all that wait behind it, instead of raising.
        """
        ...

    def begin(
        self, asks: Sequence[Ask], version: int, *, partly: bool = False
    ) -> Sequence[Future[list[Answer] | None]]:
        """The same, each ask on its own: what can be computed elsewhere goes on after this has returned."""
        ...

    def load(self, folder: Path, version: int) -> None:
        """Take the weights in ``folder``; from then on every completion is made by them."""
        ...

    def prompt_logp(self, token_ids: Sequence[int]) -> dict[str, list[float]]:
        """By server, the log-probability of each token but the first given those before it, at temperature 1 [nats]."""
        ...

    def close(self) -> None:
        """Stop whatever was started."""
        ...

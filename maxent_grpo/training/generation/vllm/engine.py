"""What the sampler needs of vLLM, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from maxent_grpo.training.generation.vllm.ask import Answer, Ask


class Place(NamedTuple):
    """Where an engine is to be asked."""

    urls: tuple[str, ...]
    num_given: int
    """How often one of its servers was given weights."""


class Engine(Protocol):
    """A running vLLM. Every call either does what it says or raises; what raises ``GenerationError`` was tried often enough."""

    @property
    def place(self) -> Place:
        """Where it is now."""
        ...

    @property
    def last_failure(self) -> str:
        """Why an answer was given up last; empty if none was."""
        ...

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

    def settle(self) -> None:
        """Wait until nothing is asked any more."""
        ...

    def load(self, version: int) -> None:
        """Take the policy's weights as they are now; from then on every completion is made by them.

        Where another process gives them, they are there already, and only their version is noted.
        """
        ...

    def prompt_logp(self, token_ids: Sequence[int]) -> dict[str, list[float]]:
        """By server, the log-probability of each token but the first given those before it, at temperature 1 [nats]."""
        ...

    def renew(self) -> Place:
        """Start anew what was started here and has ended, and give the weights again to whom lacks them; where it is then."""
        ...

    def follow(self, place: Place) -> None:
        """Ask there from now on."""
        ...

    def close(self) -> None:
        """Stop whatever was started."""
        ...

"""What a sampler may offer beyond being called, looked for where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from maxent_grpo.training.types.rewards import CompletionRecord


@runtime_checkable
class VersionedSampler(Protocol):
    """A sampler whose randomness is keyed by rollout and that stamps completions with the weights' version."""

    policy_version: int

    def begin_rollout(self, index: int, *, ahead: int = 0) -> None:
        """Start rollout ``index``, which trains ``ahead`` optimiser steps from now; the same index draws the same samples again."""


@runtime_checkable
class SharingSampler(Protocol):
    """A sampler that can be told what other processes sample of a rollout, whose samples it then does not draw again."""

    def count_elsewhere(self, prompts: Sequence[str], num_samples: int) -> None:
        """Another process draws the next ``num_samples`` completions of each prompt's row in this rollout."""


@runtime_checkable
class SendingSampler(Protocol):
    """A sampler that can be asked before its answers are wanted, and has weights of its own, which stay while it samples."""

    def send(self, prompts: list[str], num_samples: int) -> None:
        """Ask for ``num_samples`` completions of each prompt, which the next call for these prompts gives."""


@runtime_checkable
class BackfillingSampler(Protocol):
    """A sampler that asks elsewhere and can sample here what does not come from there."""

    def backfill(
        self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
    ) -> tuple[list[list[str]], list[list[CompletionRecord | None]]]:
        """The same as a call of the sampler, by the trainer's own model."""
        ...

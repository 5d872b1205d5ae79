"""A sampler that follows a script: it implements ``GenerationFn`` and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from maxent_grpo.training.types.choices import FinishReason
from maxent_grpo.training.types.rewards import CompletionRecord


def completion_record(row_id: str, text: str, policy_version: int = 0) -> CompletionRecord:
    """The record of ``text`` with one token a character, log-probability -1 each, and the end token 0."""
    token_ids = [*map(ord, text), 0]
    return CompletionRecord(row_id, token_ids, [-1.0] * len(token_ids), FinishReason.eos, policy_version)


def numbered_text(row_id: str, serial: int) -> str:
    """The ``serial``-th completion that a scripted sampler invents for a row."""
    return f"{row_id}#{serial}"


@dataclass
class Call:
    """One question to the sampler."""

    prompts: list[str]
    num_samples: int
    per_prompt_counts: list[int] | None

    @property
    def row_ids(self) -> list[str]:
        """The rows asked about."""
        return [getattr(prompt, "row_id", prompt) for prompt in self.prompts]


@dataclass
class ScriptedGenerator:
    """Delivers, at call n, ``deliveries[n][row_id]`` completions for each prompt asked about, and nothing after the script.

    A row that a call's script does not name gets what was asked for. Completions are numbered by row over all calls, unless
    ``text`` invents them. ``tracks`` says, by call, whether metadata is returned; its last entry holds from then on.
    """

    deliveries: Sequence[dict[str, int]]
    tracks: Sequence[bool] = (True,)
    text: Callable[[str, int], str] = numbered_text
    calls: list[Call] = field(default_factory=list)
    delivered: dict[str, int] = field(default_factory=dict)

    def __call__(
        self, prompts: list[str], num_samples: int, per_prompt_counts: list[int] | None = None
    ) -> tuple[list[list[str]], list[list[CompletionRecord | None]] | None]:
        call = Call(list(prompts), num_samples, per_prompt_counts)
        turn = len(self.calls)
        self.calls.append(call)
        counts = per_prompt_counts or [num_samples] * len(prompts)
        script = self.deliveries[turn] if turn < len(self.deliveries) else dict.fromkeys(call.row_ids, 0)
        texts = [
            self._invent(row_id, script.get(row_id, count)) for row_id, count in zip(call.row_ids, counts, strict=True)
        ]
        if not self.tracks[min(turn, len(self.tracks) - 1)]:
            return texts, None
        records: list[list[CompletionRecord | None]] = [
            [completion_record(row_id, text) for text in group]
            for row_id, group in zip(call.row_ids, texts, strict=True)
        ]
        return texts, records

    def _invent(self, row_id: str, count: int) -> list[str]:
        first = self.delivered.get(row_id, 0)
        self.delivered[row_id] = first + count
        return [self.text(row_id, serial) for serial in range(first, first + count)]

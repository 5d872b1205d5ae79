"""A run in which nothing can be learnt, said once while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PATIENCE = 5
"""Steps in a row before it is said that completions are all cut: a single one is chance [steps]."""


@dataclass
class StallWatch:
    """Looks for steps in which every completion was cut by the length limit and no group had different rewards, or none had any."""

    patience: int = PATIENCE
    num_steps: int = 0
    """Steps in a row whose completions were all cut."""
    said: set[str] = field(default_factory=set[str])

    def see(self, metrics: Mapping[str, float], max_completion_len: int) -> str | None:
        """Look at a step's metrics; the sentence to write, each once in a run."""
        if metrics.get("reward/abstained", 0) > 0 and "reward/mean" not in metrics:
            return self._once(
                "abstained",
                "nothing is learnt from this step: every reward term abstained on every completion; a function that returns no "
                "value for a completion returns None, which leaves the completion out: see reward.functions",
            )
        cut = metrics.get("completion/clipped_ratio") == 1.0 and metrics.get("reward/equal_groups") == 1.0
        self.num_steps = self.num_steps + 1 if cut else 0
        if self.num_steps < self.patience:
            return None
        return self._once(
            "cut",
            f"nothing is learnt: for {self.num_steps} steps every completion was cut at "
            f"generation.max_completion_len={max_completion_len} tokens before it ended, and all rewards of each group were "
            f"equal; raise generation.max_completion_len, ask for shorter answers in the prompt, or check with the samples in "
            f"completions.jsonl that the model ends its turns with an end token (listed when the run starts)",
        )

    def _once(self, what: str, sentence: str) -> str | None:
        if what in self.said:
            return None
        self.said.add(what)
        return sentence

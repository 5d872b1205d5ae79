"""A run in which nothing can be learnt, said once while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PATIENCE = 5
"""Steps in a row before it is said: a single one is chance [steps]."""


@dataclass
class StallWatch:
    """Counts steps in a row in which every completion was cut by the length limit and no group had different rewards."""

    patience: int = PATIENCE
    num_steps: int = 0
    said: bool = False

    def see(self, metrics: Mapping[str, float], max_completion_len: int) -> str | None:
        """Look at a step's metrics; the sentence to write, once in a run."""
        nothing = metrics.get("completion/clipped_ratio") == 1.0 and metrics.get("reward/equal_groups") == 1.0
        self.num_steps = self.num_steps + 1 if nothing else 0
        if self.said or self.num_steps < self.patience:
            return None
        self.said = True
        return (
            f"nothing is learnt: for {self.num_steps} steps every completion was cut at "
            f"generation.max_completion_len={max_completion_len} tokens before it ended, and all rewards of each group were "
            f"equal; raise generation.max_completion_len, ask for shorter answers in the prompt, or check with the samples in "
            f"completions.jsonl that the model ends its turns with an end token (listed when the run starts)"
        )

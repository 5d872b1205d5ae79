"""What a sweep says of the jobs that did not finish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maxent_grpo.errors import MaxentGrpoError


@dataclass
class SweepFailure:
    """A job that did not finish: its overrides and what is wrong with it, a line each."""

    overrides: Sequence[str]
    problems: list[str]
    exit_status: int
    """What the job alone would have ended with: 2 for wrong settings, 75, 143 or 130 for one that was saved and stopped, else 1."""


class SweepError(MaxentGrpoError):
    """Some jobs of a sweep did not finish; the others ran."""

    def __init__(self, num_jobs: int, failures: list[SweepFailure]) -> None:
        super().__init__(num_jobs, failures)
        self.num_jobs = num_jobs
        self.failures = failures

    @property
    def exit_status(self) -> int:
        """That of every job, where all of them that did not finish ended alike; else 1."""
        found = {failure.exit_status for failure in self.failures}
        return found.pop() if len(found) == 1 else 1

    def __str__(self) -> str:
        lines = [f"{len(self.failures)} of {self.num_jobs} jobs failed:"]
        for failure in self.failures:
            lines += [f"  - {' '.join(failure.overrides)}", *(f"      {problem}" for problem in failure.problems)]
        return "\n".join(lines)

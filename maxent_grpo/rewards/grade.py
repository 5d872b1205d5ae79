"""What grading one completion says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on one completion.

    ``key`` is the canonical form of the answer that the completion gives, right or wrong, shared by all completions that say
    the same; None when it gives none. Majority votes count it. ``mode`` is the key of a right answer and None for any other.
    ``reason`` is empty when the completion parsed as an answer, right or wrong, else one word to count by. A grader that
    does not tell wrong answers apart leaves ``key`` out: it is then the mode.

    Raises:
        ValueError: a right answer whose key is not its mode.
    """

    reward: float
    mode: str | None
    reason: str
    key: str | None = None

    def __post_init__(self) -> None:
        if self.key is None:
            object.__setattr__(self, "key", self.mode)
        elif self.mode is not None and self.key != self.mode:
            raise ValueError(f"a right answer's key is its mode, got key {self.key!r} and mode {self.mode!r}")

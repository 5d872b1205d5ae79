"""The processes of a run that share servers: one leads, which starts them and gives them weights, and all of them ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from accelerate import Accelerator

from maxent_grpo.distributed import gather_all
from maxent_grpo.errors import GenerationError, MaxentGrpoError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Team:
    """Where this process stands. Its calls are collective: every process of the run makes them in the same order."""

    accelerator: Accelerator | None = None
    """None is a process of its own."""
    per_node: bool = False
    """Each node has servers of its own, led by its first process; otherwise the run's first process leads all."""

    @property
    def size(self) -> int:
        """Processes of the run."""
        return 1 if self.accelerator is None else self.accelerator.num_processes

    @property
    def rank(self) -> int:
        """This process's number."""
        return 0 if self.accelerator is None else self.accelerator.process_index

    @property
    def leader(self) -> int:
        """The number of the process that leads this one. Launchers number the processes of a node one after the other."""
        if self.accelerator is None or not self.per_node:
            return 0
        return self.rank - self.accelerator.local_process_index

    @property
    def leads(self) -> bool:
        """Whether this process leads."""
        return self.rank == self.leader

    def exchange(self, value: T) -> list[T]:
        """Each process's value, in their order."""
        return [value] if self.accelerator is None else gather_all(self.accelerator, value)

    def lead(self, act: Callable[[], T]) -> list[T]:
        """What each leader's action returns, under the number of every process that it leads; the others wait meanwhile.

        Raises:
            GenerationError: a leader failed; every process raises.
        """
        value: Any = None
        own: Exception | None = None
        if self.leads:
            try:
                value = act()
            except (MaxentGrpoError, OSError) as error:
                own = error
        told = self.exchange((self.leader, value, None if own is None else str(own)))
        if own is not None:
            raise own
        for leader, _, failure in told:
            if failure is not None:
                raise GenerationError(failure if len(told) == 1 else f"process {leader}: {failure}")
        return [told[leader][1] for leader, _, _ in told]

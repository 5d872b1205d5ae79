"""The training rows as one stream, epoch after epoch, from a position that checkpoints hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from maxent_grpo.tasks.sampler import EpochSampler
from maxent_grpo.training.types.runtime import StepBatchInfo


@dataclass
class DataPosition:
    """Where the next rows begin."""

    epoch: int = 0
    offset: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Epoch and offset."""
        return {"epoch": self.epoch, "offset": self.offset}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position."""
        self.epoch, self.offset = int(state["epoch"]), int(state["offset"])


class RowStream:
    """Hands out the rows in the sampler's order and moves the position past them.

    The order of an epoch is a function of seed and epoch, so that the position alone continues a stream exactly, whatever
    the sizes of the draws before it.
    """

    def __init__(
        self,
        loader: Iterable[list[dict[str, Any]]],
        sampler: EpochSampler,
        position: DataPosition,
        prompts_per_step: int,
    ) -> None:
        self.position = position
        self._loader, self._sampler = loader, sampler
        self._prompts_per_step = prompts_per_step
        self._rest: Iterator[dict[str, Any]] | None = None

    @property
    def num_drawn(self) -> int:
        """Rows drawn since the run began, over all epochs: the place of the next row in the stream."""
        return self.position.epoch * len(self._sampler) + self.position.offset

    def draw(self, count: int, *, across_epochs: bool = False) -> StepBatchInfo:
        """The next ``count`` rows, with the epoch and the step in it at which they begin.

        The last draw of an epoch has the rows that are left of it; with ``across_epochs`` it goes on with those of the next.
        """
        self._begin_epoch_if_done()
        info = StepBatchInfo(self.position.epoch, self.position.offset // self._prompts_per_step, [])
        while len(info.batch) < count:
            self._begin_epoch_if_done()
            rows = list(islice(self._rows(), count - len(info.batch)))
            info.batch.extend(rows)
            self.position.offset += len(rows)
            if not across_epochs:
                break
        return info

    def _rows(self) -> Iterator[dict[str, Any]]:
        """What is left of the epoch."""
        if self._rest is None:
            self._sampler.set_position(self.position.epoch, self.position.offset)
            self._rest = chain.from_iterable(self._loader)
        return self._rest

    def _begin_epoch_if_done(self) -> None:
        if self.position.offset >= len(self._sampler):
            self.position.epoch, self.position.offset = self.position.epoch + 1, 0
            self._rest = None

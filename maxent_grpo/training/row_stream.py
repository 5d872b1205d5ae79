"""The training rows as one stream, epoch after epoch, from a position that checkpoints hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from maxent_grpo.errors import DataError
from maxent_grpo.tasks.sampler import EpochSampler
from maxent_grpo.training.types.runtime import StepBatchInfo


@dataclass
class DataPosition:
    """Where the next rows begin."""

    epoch: int = 0
    offset: int = 0
    num_dropped: int = 0
    """Rows passed over since the run began, because their prompts are too long."""

    def state_dict(self) -> dict[str, Any]:
        """Epoch, offset and what was dropped on the way."""
        return {"epoch": self.epoch, "offset": self.offset, "num_dropped": self.num_dropped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position."""
        self.epoch, self.offset = int(state["epoch"]), int(state["offset"])
        self.num_dropped = int(state.get("num_dropped", 0))


class RowStream:
    """Hands out the rows in the sampler's order and moves the position past them.

    The order of an epoch is a function of seed and epoch, so that the position alone continues a stream exactly, whatever
    the sizes of the draws before it. The loader gives None for a row whose prompt is too long: it is passed over and counted.
    """

    def __init__(
        self,
        loader: Iterable[list[dict[str, Any] | None]],
        sampler: EpochSampler,
        position: DataPosition,
        prompts_per_step: int,
    ) -> None:
        self.position = position
        self._loader, self._sampler = loader, sampler
        self._prompts_per_step = prompts_per_step
        self._rest: Iterator[dict[str, Any] | None] | None = None

    @property
    def num_drawn(self) -> int:
        """Rows drawn or passed over since the run began, over all epochs: the place of the next row in the stream."""
        return self.position.epoch * len(self._sampler) + self.position.offset

    def draw(self, count: int, *, across_epochs: bool = False) -> StepBatchInfo:
        """The next ``count`` rows, with the epoch and the step in it at which they begin.

        The last draw of an epoch has the rows that are left of it; with ``across_epochs`` it goes on with those of the next,
        and so it does where none was left.

        Raises:
            DataError: as many rows as an epoch has were passed over.
        """
        info = self._here()
        fruitless = 0
        while len(info.batch) < count:
            if self._is_done() and not across_epochs:
                if info.batch:
                    break
                info = self._here()
            taken = self._take(count - len(info.batch))
            kept = [row for row in taken if row is not None]
            info.batch.extend(kept)
            fruitless = 0 if kept else fruitless + len(taken)
            if fruitless >= len(self._sampler):
                raise DataError(
                    f"all of the last {fruitless} training prompts are longer than generation.max_prompt_len, which leaves "
                    "nothing to sample; raise it, or set data.long_prompts=truncate_left"
                )
        return info

    def peek(self, count: int, *, across_epochs: bool = False) -> StepBatchInfo:
        """What ``draw`` will give, with the position left where it is."""
        here = self.position.state_dict()
        try:
            return self.draw(count, across_epochs=across_epochs)
        finally:
            self.go_to(here)

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Draw from a position that was noted before."""
        self.position.load_state_dict(position)
        self._rest = None

    def _here(self) -> StepBatchInfo:
        """Where the next row is, with no row yet."""
        self._begin_epoch_if_done()
        return StepBatchInfo(self.position.epoch, self.position.offset // self._prompts_per_step, [])

    def _take(self, count: int) -> list[dict[str, Any] | None]:
        """The next ``count`` rows, or those that are left of the epoch; the position moves past them."""
        self._begin_epoch_if_done()
        taken = list(islice(self._rows(), count))
        self.position.offset += len(taken)
        self.position.num_dropped += sum(row is None for row in taken)
        return taken

    def _rows(self) -> Iterator[dict[str, Any] | None]:
        """What is left of the epoch."""
        if self._rest is None:
            self._sampler.set_position(self.position.epoch, self.position.offset)
            self._rest = chain.from_iterable(self._loader)
        return self._rest

    def _is_done(self) -> bool:
        return self.position.offset >= len(self._sampler)

    def _begin_epoch_if_done(self) -> None:
        if self._is_done():
            self.position.epoch, self.position.offset = self.position.epoch + 1, 0
            self._rest = None

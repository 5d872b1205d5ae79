"""The order in which training rows are visited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

EpochOrder = Callable[[int], Sequence[int] | npt.NDArray[np.int64]]
"""From an epoch to the places of its rows in order; a pure function, always of one length, in which a row may occur more than once."""


class EpochSampler(Sampler[int]):
    """Row indices of one epoch at a time, in an order that is a pure function of (seed, epoch).

    ``set_position(epoch, offset)`` chooses what the next iteration yields: epoch ``epoch`` from its ``offset``-th row on.
    Iterating does not advance the position, so the position alone resumes a run exactly. There is no ``set_epoch``:
    loaders that call one with a counter of their own would overrule the position of a resumed run.

    Args:
        num_rows: rows of an epoch.
        seed: of the order.
        shuffle: false keeps the rows in their order in every epoch.
        order: gives the order of an epoch instead; neither ``seed`` nor ``shuffle`` then says anything.
    """

    def __init__(self, num_rows: int, *, seed: int, shuffle: bool = True, order: EpochOrder | None = None) -> None:
        if num_rows < 1:
            raise ValueError(f"a sampler needs at least one row, got {num_rows}")
        if seed < 0:
            raise ValueError(f"the seed of the data order must not be negative, got {seed}")
        self._num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self._given = order
        self.epoch = 0
        self.offset = 0
        self._kept: tuple[int, Sequence[int] | npt.NDArray[np.int64]] | None = None
        """The order that was asked for last, with its epoch: going back within an epoch makes none anew."""

    def set_position(self, epoch: int, offset: int) -> None:
        """Go to row ``offset`` (0 <= offset <= number of rows) of epoch ``epoch``."""
        if epoch < 0 or not 0 <= offset <= self._num_rows:
            raise ValueError(f"epoch {epoch}, offset {offset} is no position among epochs of {self._num_rows} rows")
        self.epoch = epoch
        self.offset = offset

    def order(self, epoch: int) -> list[int]:
        """The whole order of epoch ``epoch``."""
        return list(map(int, self._order(epoch)))

    def _order(self, epoch: int) -> Sequence[int] | npt.NDArray[np.int64]:
        if self._kept is None or self._kept[0] != epoch:
            self._kept = epoch, self._made_order(epoch)
        return self._kept[1]

    def _made_order(self, epoch: int) -> Sequence[int] | npt.NDArray[np.int64]:
        if self._given is not None:
            given = self._given(epoch)
            if len(given) != self._num_rows:
                raise ValueError(f"the order of epoch {epoch} has {len(given)} rows, not {self._num_rows}")
            return given
        if not self._shuffle:
            return range(self._num_rows)
        generator = np.random.Generator(np.random.Philox(key=np.array([self._seed, epoch], dtype=np.uint64)))
        return generator.permutation(self._num_rows)

    def __iter__(self) -> Iterator[int]:
        return map(int, self._order(self.epoch)[self.offset :])

    def __len__(self) -> int:
        """Rows of a whole epoch, whatever the position: the steps of an epoch are counted with it."""
        return self._num_rows

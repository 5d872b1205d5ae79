"""The order in which training rows are visited."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler


class EpochSampler(Sampler[int]):
    """Row indices of one epoch at a time, in an order that is a pure function of (seed, epoch).

    ``set_position(epoch, offset)`` chooses what the next iteration yields: epoch ``epoch`` from its ``offset``-th row on.
    Iterating does not advance the position, so the position alone resumes a run exactly. There is no ``set_epoch``:
    loaders that call one with a counter of their own would overrule the position of a resumed run.
    """

    def __init__(self, num_rows: int, *, seed: int, shuffle: bool = True) -> None:
        if num_rows < 1:
            raise ValueError(f"a sampler needs at least one row, got {num_rows}")
        if seed < 0:
            raise ValueError(f"the seed of the data order must not be negative, got {seed}")
        self._num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self.epoch = 0
        self.offset = 0

    def set_position(self, epoch: int, offset: int) -> None:
        """Go to row ``offset`` (0 <= offset <= number of rows) of epoch ``epoch``."""
        if epoch < 0 or not 0 <= offset <= self._num_rows:
            raise ValueError(f"epoch {epoch}, offset {offset} is no position among epochs of {self._num_rows} rows")
        self.epoch = epoch
        self.offset = offset

    def order(self, epoch: int) -> list[int]:
        """The whole order of epoch ``epoch``."""
        if not self._shuffle:
            return list(range(self._num_rows))
        generator = np.random.Generator(np.random.Philox(key=np.array([self._seed, epoch], dtype=np.uint64)))
        return generator.permutation(self._num_rows).tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(self.epoch)[self.offset :])

    def __len__(self) -> int:
        """Rows of a whole epoch, whatever the position: the steps of an epoch are counted with it."""
        return self._num_rows

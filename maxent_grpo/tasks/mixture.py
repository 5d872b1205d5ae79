"""Several sources in fixed proportions: how many rows of each an epoch takes, and in which order.

Everything is a pure function of sizes, weights, seed and epoch, so that a position alone resumes a run exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_PERMUTE, _JITTER = 1, 2


@dataclass(frozen=True, slots=True)
class Mixture:
    """The sources that a task's training rows are made of, one after the other."""

    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    """Rows of each source."""
    weights: tuple[float, ...]
    """Its share of an epoch, relative to the others."""
    num_rows: int
    """Rows of an epoch."""

    def order(self, seed: int, epoch: int, *, shuffle: bool = True) -> npt.NDArray[np.int64]:
        """See ``mixture_order``."""
        return mixture_order(self.sizes, self.weights, self.num_rows, seed, epoch, shuffle=shuffle)


def mixture_order(
    sizes: Sequence[int], weights: Sequence[float], num_rows: int, seed: int, epoch: int, *, shuffle: bool = True
) -> npt.NDArray[np.int64]:
    """Indices, into the sources' rows laid end to end, of one epoch.

    Source s gives ``apportioned(num_rows, weights)[s]`` rows, the same number in every epoch. It walks through its own rows,
    each pass in an order of its own, and goes on in the next epoch where it stopped: over any number of epochs each of its
    rows is taken equally often, up to one. The sources are interleaved evenly, so that any stretch of an epoch has about the
    mixture's proportions; where a source has fewer rows than an epoch takes of it, a row comes again after about one pass.

    Args:
        sizes: rows of each source, at least 1.
        weights: share of each source, above 0; only their ratios matter.
        num_rows: rows of the epoch.
        seed, epoch: of the order.
        shuffle: false walks through each source in its own order.
    """
    counts = apportioned(num_rows, weights)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    rows, moments = [], []
    for source, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        walked = _walk(size, epoch * count, count, (seed, source), shuffle)
        rows.append(walked + starts[source])
        offset = _random(seed, _JITTER, source, epoch).random(count) if shuffle else 0.5
        moments.append((np.arange(count) + offset) / max(count, 1))
    return np.concatenate(rows)[np.argsort(np.concatenate(moments), kind="stable")]


def apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """``total`` shared out by weight in whole numbers, by largest remainder; of equal remainders the first comes first."""
    shares = np.asarray(weights, dtype=np.float64)
    exact = shares / shares.max()  # keeps huge weights finite
    exact = exact * (total / exact.sum())
    counts = np.floor(exact).astype(np.int64)
    left = total - int(counts.sum())
    for source in np.argsort(-(exact - counts), kind="stable")[:left]:
        counts[source] += 1
    return counts.tolist()


def _walk(size: int, first: int, count: int, stream: tuple[int, int], shuffle: bool) -> npt.NDArray[np.int64]:
    """Elements ``first`` to ``first + count`` of an endless sequence of passes over ``size`` rows."""
    seed, source = stream
    passes = range(first // size, -(-(first + count) // size))
    orders = [
        _random(seed, _PERMUTE, source, number).permutation(size) if shuffle else np.arange(size) for number in passes
    ]
    if not orders:
        return np.empty(0, dtype=np.int64)
    skipped = first - passes.start * size
    return np.concatenate(orders)[skipped : skipped + count]


def _random(seed: int, purpose: int, source: int, number: int) -> np.random.Generator:
    key = np.array([seed, (purpose << 48) + source], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, number]))

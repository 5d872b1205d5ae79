"""How well a linear map tells classes apart on data it was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RIDGE = 0.1
"""Penalty of the squared weights per fitted example, for features whose variances average 1."""


def probe_accuracy(features: NDArray[np.floating], labels: Sequence[int], fold: Sequence[int]) -> float:
    """Accuracy of a ridge classifier on examples held out from its fit, each fold being held out once.

    The classifier regresses one-hot classes on centred features, W = (X'X + n RIDGE I)^-1 X'Y, and answers the class of the
    largest output. One scale serves all features: scaling each by its own would blow up those that hardly vary. Its accuracy is the share of right answers over all held-out examples.

    Args:
        features: one row an example [n, d].
        labels: class of each example.
        fold: fold of each example; what is alike but for its class, such as answers to one prompt, belongs in one fold.

    Raises:
        ValueError: lists that are not aligned, features that are not finite, or fewer than two folds.
    """
    x, y, folds = np.asarray(features, dtype=np.float64), np.asarray(labels), np.asarray(fold)
    if x.ndim != 2 or not len(x) == len(y) == len(folds):
        raise ValueError(f"features of shape {x.shape}, {len(y)} labels and {len(folds)} folds are not aligned")
    if not np.isfinite(x).all():
        raise ValueError("features hold NaN or infinities, which no classifier can be fitted to")
    if len(set(folds.tolist())) < 2:
        raise ValueError("one fold leaves nothing to fit on when it is held out: make at least two")
    right = 0
    for held_out in sorted(set(folds.tolist())):
        test = folds == held_out
        right += int((_fitted_answers(x[~test], y[~test], x[test]) == y[test]).sum())
    return right / len(y)


def _fitted_answers(x: NDArray[np.float64], y: NDArray[np.int64], new: NDArray[np.float64]) -> NDArray[np.int64]:
    """The classes that a classifier fitted to (x, y) gives to ``new``."""
    classes = np.unique(y)
    targets = (y[:, None] == classes[None, :]).astype(np.float64)
    mean, scale = x.mean(axis=0), float(np.sqrt(x.var(axis=0).mean())) or 1.0
    x, new = (x - mean) / scale, (new - mean) / scale
    centre = targets.mean(axis=0)
    penalty = RIDGE * len(x)
    # the smaller of the two equal forms: a system of d or of n unknowns
    if x.shape[1] <= len(x):
        weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ (targets - centre))
    else:
        weights = x.T @ np.linalg.solve(x @ x.T + penalty * np.eye(len(x)), targets - centre)
    return classes[(new @ weights + centre).argmax(axis=1)]

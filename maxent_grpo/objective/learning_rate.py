"""Learning-rate schedules: the factor f(s) on the peak rate at update s, after w updates of warm-up out of n in all.

While s < w every schedule but ``constant`` rises as s / w. Behind that, with the part p = (s - w) / (n - w) of the way done:

| name | f |
|---|---|
| constant, constant_with_warmup | 1 |
| linear | 1 - p |
| cosine, cosine_with_restarts | (1 + cos pi p) / 2 |
| polynomial | (1 - p) + p e, where e = 1e-7 / peak |
| inverse_sqrt | sqrt(w / s), with 10000 in place of w when w = 0 |

The names and the curves are those of transformers' ``get_scheduler``; its module is not used because importing it imports peft.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

Factor = Callable[[int], float]

LOWEST_RATE = 1e-7
"""Where ``polynomial`` ends."""
TIMESCALE = 10_000
"""Updates over which ``inverse_sqrt`` falls where there is no warm-up."""


def learning_rate_factor(name: str, *, warmup: int, total: int, peak: float) -> Factor:
    """The factor as a function of the update, which counts from 0.

    Args:
        name: of the schedule, see above.
        warmup: updates of warm-up.
        total: updates in all.
        peak: the rate that the factor multiplies; only ``polynomial`` asks for it.

    Raises:
        KeyError: there is no schedule of that name.
        ValueError: ``polynomial`` with a peak that is not above the rate it ends at.
    """
    if name == "polynomial" and not peak > LOWEST_RATE:
        raise ValueError(f"a polynomial schedule ends at {LOWEST_RATE}, which is not below the learning rate {peak}")
    curves: dict[str, Factor] = {
        "constant": _one,
        "constant_with_warmup": _one,
        "linear": partial(_linear, warmup, total),
        "cosine": partial(_cosine, warmup, total),
        "cosine_with_restarts": partial(_cosine_with_restarts, warmup, total),
        "polynomial": partial(_polynomial, warmup, total, peak),
        "inverse_sqrt": partial(_inverse_sqrt, warmup),
    }
    return partial(_factor, 0 if name == "constant" else warmup, curves[name])


def _factor(warmup: int, curve: Factor, step: int) -> float:
    return step / warmup if step < warmup else curve(step)


def _one(_step: int) -> float:
    return 1.0


def _linear(warmup: int, total: int, step: int) -> float:
    return max(0.0, (total - step) / max(1, total - warmup))


def _done(warmup: int, total: int, step: int) -> float:
    return (step - warmup) / max(1, total - warmup)


def _cosine(warmup: int, total: int, step: int) -> float:
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * _done(warmup, total, step))))


def _cosine_with_restarts(warmup: int, total: int, step: int) -> float:
    """One cycle: it ends at 0 and stays there."""
    return 0.0 if _done(warmup, total, step) >= 1.0 else _cosine(warmup, total, step)


def _polynomial(warmup: int, total: int, peak: float, step: int) -> float:
    if step > total:
        return LOWEST_RATE / peak
    left = 1 - (step - warmup) / (total - warmup) if total > warmup else 0.0
    return ((peak - LOWEST_RATE) * left + LOWEST_RATE) / peak


def _inverse_sqrt(warmup: int, step: int) -> float:
    timescale = warmup or TIMESCALE
    return 1.0 / math.sqrt((step + timescale - warmup) / timescale)

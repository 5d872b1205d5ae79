"""Numbers on an axis and numbers in words: round ticks, short figures, places in a drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def short(value: float, digits: int = 3) -> str:
    """A number in few characters: thousands grouped from 10 000 on, very small and large ones with an exponent."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}"
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}" if size >= 1e4 else f"{value:.0f}"
    decimals = max(digits - 1 - math.floor(math.log10(size)), 0)
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(value: float) -> str:
    """A share as a percentage."""
    return f"{100 * value:.0f}%" if value >= 0.095 or value == 0 else f"{100 * value:.1f}%"


def duration(seconds: float) -> str:
    """Seconds in the two units that matter."""
    if seconds < 60:
        return f"{short(seconds, 2)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def round_step(span: float, count: int) -> float:
    """The roundest distance that divides ``span`` into at most ``count`` parts."""
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in ROUND_STEPS if step * power >= rough * (1 - 1e-9))


def ticks(low: float, high: float, count: int = 5, *, least: float = 0.0) -> list[float]:
    """Round numbers within [low, high], about ``count`` of them and no closer than ``least``."""
    step = max(round_step(max(high - low, 1e-300), count), least)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def step_ticks(low: float, high: float) -> list[float]:
    """Whole round numbers from ``low`` on, and the last step itself."""
    inside = [
        tick for tick in ticks(low, high, 5, least=1.0) if tick == int(tick) and high - tick > 0.09 * (high - low)
    ]
    return [*inside, high]


def tick_texts(values: Sequence[float]) -> list[str]:
    """Tick labels that tell the ticks apart, with as few digits as that takes; thousands as k, millions as M."""
    most = max(map(abs, values), default=0.0)
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if most >= 10 * unit or (most >= unit > 1e3):
            return [text if text == "0" else text + letter for text in tick_texts([value / unit for value in values])]
    for digits in (2, 3, 4, 5, 6):
        texts = [short(value, digits) for value in values]
        if len(set(texts)) == len(texts) and all(
            math.isclose(float(text.replace(",", "")), value, rel_tol=1e-3, abs_tol=1e-12)
            for text, value in zip(texts, values, strict=True)
        ):
            return texts
    return [f"{value:g}" for value in values]


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high`` laid out from ``start`` to ``end``; with ``is_log`` by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Where the value lies."""
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def value_range(values: Sequence[float], *, from_zero: bool, top: float | None = None) -> tuple[float, float]:
    """Limits of a vertical axis around the values, from zero if asked, not beyond ``top`` where that is a natural limit."""
    low, high = min(values), max(values)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    lower = low if from_zero and low == 0.0 else low - room
    if min(values) >= 0.0:
        lower = max(lower, 0.0)
    upper = high if from_zero and high == 0.0 and low < 0.0 else high + room
    return lower, upper if top is None or high > top else min(upper, top)

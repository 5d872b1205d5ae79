"""Advantages written out in Python floats, one completion after another, from the published formulas.

Nothing here comes from the package. A credit rule gives the advantage of every row, 0 for rows without a reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from support.steps import Step

Tokens = list[list[float]]
TAU, LIMIT, RIGHT = 0.1, 8, 0.999


@dataclass(frozen=True)
class Plain:
    """A step as numbers: rows of trained tokens, prompt-major groups of ``size``."""

    size: int
    beta: float
    rewards: list[float]
    valid: list[bool]
    complete: list[bool]
    keys: list[int]
    logp: Tokens
    old: Tokens
    reference: Tokens
    sampled: Tokens
    entropy: Tokens
    priority: Tokens

    @property
    def groups(self) -> list[list[int]]:
        """Valid rows of each group."""
        starts = range(0, len(self.rewards), self.size)
        return [[row for row in range(at, at + self.size) if self.valid[row]] for at in starts]

    @property
    def places(self) -> list[tuple[int, int]]:
        """(row, place) of every trained token."""
        return [(row, t) for row, tokens in enumerate(self.logp) for t in range(len(tokens))]


def plain(step: Step, beta: float, entropy: Tokens | None = None) -> Plain:
    """The numbers of a made-up step; ``entropy`` replaces its made-up entropies."""

    def tokens(values: object) -> Tokens:
        pairs = zip(values.tolist(), step.mask.tolist(), strict=True)  # type: ignore[attr-defined]
        return [[value for value, taken in zip(row, mask, strict=True) if taken] for row, mask in pairs]

    return Plain(
        step.utilities.shape[1],
        beta,
        step.utilities.flatten().tolist(),
        step.valid.flatten().tolist(),
        step.complete.flatten().tolist(),
        step.keys.flatten().tolist(),
        *(tokens(values) for values in (step.logp, step.old_logp, step.reference_logp, step.sampled_logp)),
        tokens(step.entropy - step.logp) if entropy is None else entropy,
        tokens(step.priority),
    )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def softmax(values: Sequence[float]) -> list[float]:
    exps = [math.exp(value - max(values)) for value in values]
    return [value / sum(exps) for value in exps]


def log_softmax(values: Sequence[float]) -> list[float]:
    total = math.log(sum(math.exp(value) for value in values))
    return [value - total for value in values]


def differ(values: Sequence[float]) -> bool:
    return len(values) > 1 and max(values) - min(values) > 1e-8


def by_group(step: Plain, rule: Callable[[list[float], list[int]], list[float]], utilities: list[float]) -> list[float]:
    out = [0.0] * len(utilities)
    for rows in step.groups:
        if rows:
            for row, value in zip(rows, rule([utilities[row] for row in rows], rows), strict=True):
                out[row] = value
    return out


def centred(step: Plain, utilities: list[float] | None = None) -> list[float]:
    return by_group(
        step,
        lambda r, _: [x - mean(r) if differ(r) else 0.0 for x in r],
        step.rewards if utilities is None else utilities,
    )


def standardised(step: Plain) -> list[float]:
    def rule(r: list[float], _: list[int]) -> list[float]:
        if not differ(r):
            return [0.0] * len(r)
        s = math.sqrt(sum((x - mean(r)) ** 2 for x in r) / (len(r) - 1))
        return [(x - mean(r)) / (s + 1e-4) for x in r]

    return by_group(step, rule, step.rewards)


def leave_one_out(step: Plain) -> list[float]:
    def rule(r: list[float], _: list[int]) -> list[float]:
        return [x - mean(r[:i] + r[i + 1 :]) if differ(r) else 0.0 for i, x in enumerate(r)]

    return by_group(step, rule, step.rewards)


def whitened(step: Plain) -> list[float]:
    a = centred(step)
    tokens = [a[row] for row, _ in step.places]
    variance = sum((x - mean(tokens)) ** 2 for x in tokens) / (len(tokens) - 1)
    return [(x - mean(tokens)) / math.sqrt(variance + 1e-8) if ok else 0.0 for x, ok in zip(a, step.valid, strict=True)]


def pass_at_two(step: Plain) -> list[float]:
    def rule(r: list[float], _: list[int]) -> list[float]:
        n, c = len(r), sum(x >= RIGHT for x in r)
        rho = 1 - math.comb(n - c, 2) / math.comb(n, 2)
        sigma = math.sqrt(rho * (1 - rho))
        if sigma == 0:
            return [0.0] * n
        wrong = (1 - rho - (math.comb(n - c - 1, 1) / (n - 1))) / sigma
        return [(1 - rho) / sigma if x >= RIGHT else wrong for x in r]

    return by_group(step, rule, step.rewards)


def soft(step: Plain) -> list[float]:
    def regularised(row: int) -> float:
        s, s_ref = sum(step.sampled[row]), sum(step.reference[row])
        return step.rewards[row] - TAU * s + step.beta * (s_ref - s)

    utilities = [regularised(row) for row in range(len(step.rewards))]
    return by_group(step, lambda r, _: [x - mean(r) for x in r], utilities)


def unique(step: Plain) -> list[float]:
    def rule(r: list[float], rows: list[int]) -> list[float]:
        keys = [step.keys[row] for row in rows]
        return [x if x <= 0 or key < 0 else x / keys.count(key) for x, key in zip(r, keys, strict=True)]

    return centred(step, by_group(step, rule, step.rewards))


def sampled_mean(step: Plain, row: int) -> float:
    return sum(step.sampled[row]) / max(len(step.sampled[row]), 1)


def unlikely(step: Plain) -> list[float]:
    def rule(r: list[float], rows: list[int]) -> list[float]:
        order = sorted(rows, key=lambda row: sampled_mean(step, row))
        return [x * (1 - 0.25 * order.index(row) / len(rows)) for x, row in zip(r, rows, strict=True)]

    return centred(step, by_group(step, rule, step.rewards))


def tempered(step: Plain, *, whole_prompts: bool = False) -> list[float]:
    def rule(a: list[float], rows: list[int]) -> list[float]:
        share = softmax([x * len(step.logp[row]) / LIMIT / 0.05 for x, row in zip(a, rows, strict=True)])
        weights = [len(rows) * value for value in share]
        if whole_prompts:
            energy = sum(x * x for x in a)
            scale = sum(v * x * x for v, x in zip(weights, a, strict=True)) / energy if energy else 0.0
            weights = [scale] * len(rows)
        return [v * x for v, x in zip(weights, a, strict=True)]

    return by_group(step, rule, centred(step))


def seed_discounted(step: Plain) -> list[float]:
    def rule(a: list[float], rows: list[int]) -> list[float]:
        mass: dict[int, float] = {}
        for row, m in zip(rows, softmax([sampled_mean(step, row) for row in rows]), strict=True):
            name = step.keys[row] if step.keys[row] >= 0 else -1 - row
            mass[name] = mass.get(name, 0.0) + m
        entropy = -sum(p * math.log(p) for p in mass.values())
        return [x / (1 + entropy / math.log(step.size)) for x in a]

    return by_group(step, rule, centred(step))

"""Every method's loss written out in Python floats, one token after another, from its published formula.

Nothing here comes from the package: the numbers a method is named for (clip distances, temperatures, coefficients) stand in
``METHODS`` as they are printed. What a method holds fixed (advantages, weights, capped ratios, chosen tokens) is computed
once, at the policy's own log-probabilities; the loss is then a function of log-probabilities and entropies alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from support.written_credit import (
    LIMIT,
    RIGHT,
    TAU,
    Plain,
    Tokens,
    centred,
    differ,
    leave_one_out,
    mean,
    pass_at_two,
    seed_discounted,
    soft,
    softmax,
    standardised,
    tempered,
    unique,
    unlikely,
    whitened,
)

# what is maximised per token: (ratio, log-prob, advantage, ratio at the policy itself)

Objective = Callable[[float, float, float, float], float]


def clip(low: float, high: float) -> Objective:
    return lambda ratio, _logp, a, _at: min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a)


def unclipped(ratio: float, _logp: float, a: float, _at: float) -> float:
    return ratio * a


def capped_likelihood(_ratio: float, logp: float, a: float, at: float) -> float:
    return min(at, 5.0) * a * logp


def gate(ratio: float, _logp: float, a: float, _at: float) -> float:
    t = 1.0 if a > 0 else 1.05
    return 4 / t / (1 + math.exp(-t * (ratio - 1))) * a


# the weight of a row's tokens

Reduction = Callable[[Plain, int], float]


def per_token(step: Plain, _row: int) -> float:
    return 1 / len(step.places)


def per_sequence(step: Plain, row: int) -> float:
    return 1 / (sum(step.valid) * max(len(step.logp[row]), 1))


def constant(step: Plain, _row: int) -> float:
    return 1 / (sum(step.valid) * LIMIT)


# the term of a group, a function of its completions' scores: (step, rows, scores)

GroupTerm = Callable[[Plain, list[int], list[float]], float]


def weights(step: Plain, rows: list[int]) -> list[float]:
    floored = [(1 - len(rows) * 1e-6) * q + 1e-6 for q in softmax([step.rewards[row] for row in rows])]
    tilted = [math.log(x) + step.beta * sum(step.reference[row]) for x, row in zip(floored, rows, strict=True)]
    return softmax([value / (TAU + step.beta) for value in tilted])


def cross_entropy(step: Plain, rows: list[int], scores: list[float]) -> float:
    return -sum(w * math.log(p) for w, p in zip(weights(step, rows), softmax(scores), strict=True))


def centred_likelihood(step: Plain, rows: list[int], scores: list[float]) -> float:
    excess = [w - 1 / len(rows) for w in weights(step, rows)]
    return -(TAU + step.beta) * sum(e * s for e, s in zip(excess, scores, strict=True))


def importance_likelihood(step: Plain, rows: list[int], scores: list[float]) -> float:
    odds = [math.log(w) - sum(step.sampled[row]) for w, row in zip(weights(step, rows), rows, strict=True)]
    return -sum(v * s for v, s in zip(softmax(odds), scores, strict=True)) if len(rows) > 1 else 0.0


def conditional(step: Plain, rows: list[int], scores: list[float]) -> float:
    right = [s for s, row in zip(scores, rows, strict=True) if step.rewards[row] >= RIGHT]
    return -mean([math.log(p) for p in softmax(right)]) if len(right) > 1 else 0.0


def residual_squares(step: Plain, rows: list[int], scores: list[float]) -> float:
    kappa = TAU + step.beta
    raw = [
        kappa * s - step.beta * sum(step.reference[row]) - step.rewards[row]
        for s, row in zip(scores, rows, strict=True)
    ]
    return sum((x - mean(raw)) ** 2 for x in raw) / 2


def participants(step: Plain) -> list[list[int]]:
    """Completions that ended by themselves; groups of equal rewards only where all are right."""
    complete = [[row for row in rows if step.complete[row]] for rows in step.groups]
    return [
        rows
        for rows in complete
        if rows and (differ([step.rewards[row] for row in rows]) or all(step.rewards[row] >= RIGHT for row in rows))
    ]


# which tokens train: (trained, held), each a set of (row, place)

Chosen = tuple[set[tuple[int, int]], set[tuple[int, int]]]


def everything(step: Plain, _advantages: list[float]) -> Chosen:
    return set(step.places), set()


def covariances(step: Plain, advantages: list[float]) -> dict[tuple[int, int], float]:
    mean_a = mean([advantages[row] for row, _ in step.places])
    mean_logp = mean([step.logp[row][t] for row, t in step.places])
    return {(row, t): (advantages[row] - mean_a) * (step.logp[row][t] - mean_logp) for row, t in step.places}


def without_high_covariance(step: Plain, advantages: list[float]) -> Chosen:
    def stopped(row: int, t: int) -> bool:
        ratio, a = math.exp(step.logp[row][t] - step.old[row][t]), advantages[row]
        return (a < 0 and ratio < 0.8) or (a > 0 and ratio > 1.2)

    inside = [at for at, c in covariances(step, advantages).items() if 0.05 < c < 5 and not stopped(*at)]
    number = max(1, int(0.1 * len(step.places)))
    left_out = sorted(inside, key=lambda at: step.priority[at[0]][at[1]])[:number]
    return set(step.places) - set(left_out), set()


def holding_high_covariance(step: Plain, advantages: list[float]) -> Chosen:
    found = covariances(step, advantages)
    number = max(1, int(0.1 * len(step.places)))
    return set(step.places), set(sorted(step.places, key=lambda at: -found[at])[:number])


def most_uncertain(step: Plain, _advantages: list[float]) -> Chosen:
    ordered = sorted(step.entropy[row][t] for row, t in step.places)
    place = 0.8 * (len(ordered) - 1)
    below = int(place)
    threshold = ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])
    return {(row, t) for row, t in step.places if step.entropy[row][t] >= threshold}, set()


CLIP = clip(0.2, 0.2)


@dataclass(frozen=True)
class Written:
    """A method as it is printed."""

    credit: Callable[[Plain], list[float]] | None
    objective: Objective = CLIP
    reduction: Reduction = constant
    group: GroupTerm | None = None
    scale: float = 0.0
    whole_ratio: bool = False
    entropy_coef: float = 0.0
    choice: Callable[[Plain, list[float]], Chosen] = everything


METHODS: dict[str, Written] = {
    "dr_grpo": Written(centred),
    "grpo": Written(standardised, reduction=per_sequence),
    "bnpo": Written(standardised, reduction=per_token),
    "dapo": Written(standardised, clip(0.2, 0.28), per_token),
    "rloo": Written(leave_one_out, unclipped),
    "reinforce_pp": Written(whitened, reduction=per_token),
    "gspo": Written(standardised, clip(3e-4, 4e-4), per_sequence, whole_ratio=True),
    "cispo": Written(standardised, capped_likelihood, per_token),
    "sapo": Written(standardised, gate, per_sequence),
    "maxent": Written(centred, group=cross_entropy, scale=0.3 / LIMIT),
    "maxent_listwise": Written(None, group=cross_entropy, scale=1.0),
    "maxent_centered": Written(None, group=centred_likelihood, scale=1 / LIMIT),
    "maxent_is": Written(None, group=importance_likelihood, scale=1 / LIMIT),
    "maxent_cond": Written(centred, group=conditional, scale=1 / LIMIT),
    "soft": Written(soft),
    "gvpo": Written(None, group=residual_squares, scale=1.0),
    "xdr": Written(tempered),
    "dr_grpo_scaled": Written(lambda step: tempered(step, whole_prompts=True)),
    "seed_grpo": Written(seed_discounted),
    "token_maxent": Written(centred, entropy_coef=0.001),
    "uniqueness": Written(unique),
    "unlikeliness": Written(unlikely),
    "passk": Written(pass_at_two),
    "clip_cov": Written(standardised, reduction=per_token, choice=without_high_covariance),
    "kl_cov": Written(standardised, unclipped, per_token, choice=holding_high_covariance),
    "high_entropy_tokens": Written(standardised, clip(0.2, 0.28), per_token, choice=most_uncertain),
}


def written_loss(name: str, step: Plain) -> Callable[[Tokens, Tokens], float]:
    """The step's loss under a method: (log-probabilities, entropies) -> number, whatever is held fixed held fixed."""
    method = METHODS[name]
    advantages = None if method.credit is None else method.credit(step)
    trained, held = method.choice(step, advantages or [])
    share = [method.reduction(step, row) for row in range(len(step.rewards))]
    takers = participants(step) if method.group else []

    def ratio(logp: Tokens, row: int, t: int) -> float:
        gaps = [x - y for x, y in zip(logp[row], step.old[row], strict=True)]
        return math.exp(mean(gaps) if method.whole_ratio else gaps[t])

    fixed = {at: ratio(step.logp, *at) for at in step.places}

    def loss(logp: Tokens, entropy: Tokens) -> float:
        total = 0.0
        for row, t in step.places:
            if advantages is not None and (row, t) in trained:
                value = method.objective(ratio(logp, row, t), logp[row][t], advantages[row], fixed[row, t])
                drift = abs(logp[row][t] - step.old[row][t]) if (row, t) in held else 0.0
                total -= share[row] * (value - drift)
            total -= method.entropy_coef * share[row] * entropy[row][t]
        for rows in takers:
            assert method.group is not None
            total += method.scale / len(step.groups) * method.group(step, rows, [sum(logp[row]) for row in rows])
        return total

    return loss

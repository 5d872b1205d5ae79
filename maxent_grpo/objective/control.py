"""Laws that move a coefficient from a measurement: numbers in, numbers out, in double precision.

A value is only ever moved inside its bounds, and a law reports whether a bound stopped it. None of them remembers anything:
what a law needs from before is an argument, what it needs next is returned.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

PPO_BAND = 1.5
"""`halved_or_doubled` acts outside [target / 1.5, 1.5 target] (arXiv 1707.06347)."""


class Bounded(NamedTuple):
    """A value inside its bounds, and whether a bound stopped it."""

    value: float
    saturated: bool


class Integrated(NamedTuple):
    """The value of `proportional_integral`, and the integral to continue with."""

    value: float
    saturated: bool
    integral: float


class Solution(NamedTuple):
    """The argument that comes closest to a target, and whether the target is out of reach between the bounds."""

    argument: float
    saturated: bool


def bounded(value: float, low: float, high: float) -> Bounded:
    """The nearest value in [low, high]."""
    return Bounded(min(max(value, low), high), not low <= value <= high)


def smoothed(previous: float | None, measured: float, rate: float) -> float:
    """Exponential average e = rate e_before + (1 - rate) m; the first measurement is taken as it is."""
    return measured if previous is None else rate * previous + (1.0 - rate) * measured


def temperature_step(
    tau: float, entropy: float, target: float, *, learning_rate: float, low: float, high: float
) -> Bounded:
    """log tau <- log tau + learning_rate (H* - H), within [low, high]; H and H* are weight entropies [nats].

    H(w) increases with log tau at a slope s = Var_w(log w) tau / (tau + beta) >= 0. With H smoothed at rate rho the
    loop is stable for learning_rate * s below 2 (1 + rho) / (1 - rho), and does not ring below
    (1 - sqrt(rho))^2 / (1 - rho). The form is that of the temperature of soft actor-critic (arXiv 1812.05905), in
    log tau. What is integrated is tau itself within its bounds, so that nothing winds up at a bound.
    """
    return _exponential(math.log(tau) + learning_rate * (target - entropy), low, high)


def linear_target(step: int, *, start: float, final: float, horizon: int) -> float:
    """From ``start`` at step 0 in a straight line to ``final`` at ``horizon`` and after."""
    return final if step >= horizon else start + (final - start) * step / horizon


def peak_target(step: int, *, start: float, peak: float, peak_step: int, final: float, horizon: int) -> float:
    """From ``start`` in a straight line to ``peak`` at ``peak_step``, then to ``final`` at ``horizon`` and after."""
    if step >= horizon:
        return final
    if step < peak_step:
        return start + (peak - start) * step / peak_step
    return peak + (final - peak) * (step - peak_step) / (horizon - peak_step)


def clipped_error(measured: float, target: float, limit: float) -> float:
    """The relative error m / target - 1, within [-limit, limit]."""
    return min(max(measured / target - 1.0, -limit), limit)


def multiplicative_step(beta: float, measured: float, target: float, *, clip: float, horizon: float) -> float:
    """beta (1 + clip(KL / KL* - 1, +-clip) / horizon), one step's worth (arXiv 1909.08593); 0 stays 0."""
    return beta * (1.0 + clipped_error(measured, target, clip) / horizon)


def additive_step(beta: float, measured: float, target: float, *, learning_rate: float) -> float:
    """beta + learning_rate (KL - KL*): ascent on the multiplier of the constraint KL <= KL*, which can leave 0."""
    return beta + learning_rate * (measured - target)


def halved_or_doubled(beta: float, measured: float, target: float) -> float:
    """beta / 2 below KL* / 1.5, 2 beta above 1.5 KL*, else beta (arXiv 1707.06347); 0 stays 0."""
    if measured < target / PPO_BAND:
        return beta / 2.0
    return beta * 2.0 if measured > target * PPO_BAND else beta


def proportional_integral(
    start: float,
    measured: float,
    target: float,
    integral: float,
    *,
    gain: float,
    integral_gain: float,
    low: float,
    high: float,
) -> Integrated:
    """log beta = log start + gain e + integral_gain sum(e), e = clip(KL / KL* - 1, +-1), within [low, high].

    The error is added to the sum only where the result is inside the bounds or the error leads back into them
    (conditional integration), so that the sum does not wind up while a bound holds beta. Source: the controller of
    arXiv 2007.03964 without its derivative term.
    """
    error = clipped_error(measured, target, 1.0)
    floor, ceiling = math.log(low), math.log(high)
    proposed = math.log(start) + gain * error + integral_gain * (integral + error)
    inside = floor < proposed < ceiling
    inward = (proposed >= ceiling and error < 0) or (proposed <= floor and error > 0)
    kept = integral + error if inside or inward else integral
    value = _exponential(math.log(start) + gain * error + integral_gain * kept, low, high).value
    return Integrated(value, not inside, kept)


def solve_increasing(
    function: Callable[[float], float], target: float, *, low: float, high: float, tolerance: float = 1e-12
) -> Solution:
    """The x in [low, high] with function(x) = target, for a function that does not decrease; by bisection in log x.

    A target beyond the function's values at the bounds gives the nearer bound.

    Args:
        function: non-decreasing on [low, high].
        target: the wanted value.
        low: smallest x, > 0.
        high: largest x.
        tolerance: width of the last interval of log x.
    """
    if function(low) >= target:
        return Solution(low, function(low) > target)
    if function(high) <= target:
        return Solution(high, function(high) < target)
    left, right = math.log(low), math.log(high)
    while right - left > tolerance:
        middle = 0.5 * (left + right)
        if function(math.exp(middle)) < target:
            left = middle
        else:
            right = middle
    return Solution(bounded(math.exp(0.5 * (left + right)), low, high).value, False)


def _exponential(log_value: float, low: float, high: float) -> Bounded:
    """exp of a value within bounds; a bound is returned as it is, which exp(log(bound)) may miss by a rounding."""
    stopped = not math.log(low) <= log_value <= math.log(high)
    if stopped:
        return Bounded(low if log_value < math.log(low) else high, True)
    return Bounded(bounded(math.exp(log_value), low, high).value, False)

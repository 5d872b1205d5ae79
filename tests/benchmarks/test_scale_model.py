"""The simulation of steps on many GPUs, and how its costs are fitted, against arithmetic by hand."""

from dataclasses import replace

import pytest

from benchmarks.scale_check import PHASES, SMALL, fit, foretold, line, load_of, phase_seconds
from benchmarks.scale_simulation import Assumed, decode_seconds, simulated_step
from maxent_grpo.training.preview.plan import Timing
from maxent_grpo.training.step_time import Costs, Layout, Links, Load, Rate, Traffic, scored_of

COSTS = Costs(
    prefill=Rate(token=1.0), decode_step=10.0, decode_token=0.5, decode_compute=0.0,
    forward=Rate(fixed=1.0, token=2.0), backward=Rate(token=4.0), update=30.0,
)  # fmt: skip
LOAD = Load(prompts=8, group=2, prompt_tokens=3, completion_tokens=50, longest=50)
TIMING = Timing(COSTS, COSTS, LOAD, Layout(2), Traffic(1000, sync=50), Links(100.0, 10.0, overlap=0.0), 1.0)


def test_sequences_make_room_for_those_that_wait() -> None:
    # two at a time: 1 and 3; when the first is done the 2 comes; it ends with the 3
    assert decode_seconds(COSTS, [1, 3, 2], 2, refills=True) == pytest.approx(3 * (10 + 2 * 0.5))
    assert decode_seconds(COSTS, [1, 3, 2], 0, refills=True) == pytest.approx(11.5 + 11 + 10.5)
    # a batch is waited for: 1 step of two, 2 of one, then 2 of the last
    assert decode_seconds(COSTS, [1, 3, 2], 2, refills=False) == pytest.approx(11 + 2 * 10.5 + 2 * 10.5)
    assert decode_seconds(replace(COSTS, decode_compute=100.0), [1], 0, refills=True) == 100


@pytest.mark.parametrize(
    "layout", [Layout(2), Layout(1, engines=2), Layout(2, engines=1, ahead=True), Layout(4, at_once=2)]
)
def test_completions_of_one_length_take_the_time_of_the_closed_form(layout: Layout) -> None:
    timing = replace(TIMING, layout=layout)
    same = Assumed(spread=0.0, rollouts=2)
    assert simulated_step(timing, same) == pytest.approx(timing.step().total)
    rounds = replace(timing, load=replace(LOAD, minibatches=2, iterations=3, reference=True))
    assert simulated_step(rounds, same) == pytest.approx(rounds.step().total)


def test_different_lengths_take_longer_than_the_mean() -> None:
    timing = replace(TIMING, load=replace(LOAD, longest=500))
    assert simulated_step(timing, Assumed()) > simulated_step(timing, Assumed(spread=0.0)) * 1.05


def test_costs_are_found_again() -> None:
    """Phases that follow the costs exactly give them back, and foretell what the same costs make of two processes."""
    sizes = SMALL.prompts, 2 * SMALL.prompts
    measured = [
        {
            "rollout": SMALL.completion * (10 + 0.5 * prompts * SMALL.group),
            "policy": COSTS.forward.seconds(scored_of(prompts, load_of(SMALL, prompts))),
            "backward": COSTS.backward.seconds(scored_of(prompts, load_of(SMALL, prompts))),
            "optimizer": 30.0,
            "rest": 7.0 + prompts,
        }
        for prompts in sizes
    ]
    # pairs of attention are not told apart from tokens, so that costs of tokens alone are found
    fitted = fit(*measured, SMALL, crowding=1.5, bus=100.0, gradient=1000)
    assert fitted.costs.decode_step == pytest.approx(10)
    assert fitted.costs.decode_token == pytest.approx(0.5)
    assert (fitted.costs.forward.fixed, fitted.costs.forward.token) == pytest.approx((1, 2))
    assert (fitted.costs.backward.token, fitted.costs.update, *fitted.rest) == pytest.approx((4, 30, 7, 1))
    alone = sum(measured[1].values())
    _, seconds = foretold(fitted, SMALL, 4 * SMALL.prompts, 2)
    assert seconds == pytest.approx(1.5 * alone + 1000 / 100)


def test_the_quickest_step_counts_and_what_has_no_cost_is_the_rest() -> None:
    def row(step: int, seconds: float) -> dict[str, float]:
        return {"step": step, "time/step_seconds": seconds, **{f"time/{name}_seconds": 1.0 for name in PHASES}}

    rows = [row(0, 1.0), row(1, 4.5), row(2, 9.0), row(3, 6.0)]
    assert phase_seconds(rows, drop=1) == {**dict.fromkeys(PHASES, 1.0), "rest": 2.0}
    assert line(3.0, 2.0, 1.0, 2.0) == (2.0, 0.0)  # noise makes no negative costs
    assert line(1.0, 3.0, 1.0, 2.0) == (0.0, 1.5)  # and what is foretold from the larger measurement agrees with it

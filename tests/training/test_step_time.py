"""The time of a step, and what an exchange moves, against arithmetic by hand."""

from dataclasses import replace

import pytest

from maxent_grpo.training.exchange import traffic_of
from maxent_grpo.training.hardware import GPUS, Assumptions, costs_of, links_of, pass_rate
from maxent_grpo.training.memory_sharding import sharding
from maxent_grpo.training.memory_sizes import ModelShape
from maxent_grpo.training.step_time import (
    Costs,
    Layout,
    Links,
    Load,
    Rate,
    Traffic,
    ring_seconds,
    sampling_seconds,
    spread_over,
    step_time,
)
from maxent_grpo.training.types.flops import ComputeShape, Work, backward_flops, forward_flops

COSTS = Costs(
    prefill=Rate(token=1.0), decode_step=10.0, decode_token=0.5, decode_compute=0.0,
    forward=Rate(fixed=1.0, token=2.0), backward=Rate(token=4.0), update=30.0,
)  # fmt: skip
LINKS = Links(inside=100.0, between=10.0, per_node=8, overlap=0.0)
LOAD = Load(prompts=4, group=2, prompt_tokens=3, completion_tokens=5, longest=8)
"""A group behind its prompt feeds 3 + 2 (5 - 1) = 11 tokens."""
SHAPE = ModelShape(
    layers=2, hidden=4, heads=2, kv_heads=1, head_dim=2, intermediate=8, vocab=10, tied=False, itemsize=2,
    num_parameters=1000,
)  # fmt: skip


def test_a_ring_moves_what_the_others_have() -> None:
    assert ring_seconds(800.0, 1, LINKS) == 0.0
    assert ring_seconds(800.0, 4, LINKS) == pytest.approx(3 / 4 * 800 / 100)
    # eight ways out of a node carry 80 a second together, less than the 100 inside
    assert ring_seconds(800.0, 16, LINKS) == pytest.approx(15 / 16 * 800 / 80)


def test_sampling_takes_the_steps_of_the_longest_or_those_of_all_tokens() -> None:
    # 8 sequences of 5 tokens: 40 tokens; prompts of 3 tokens, four of them
    alone = sampling_seconds(COSTS, 4, LOAD, 0, refills=True)
    assert alone == pytest.approx(12 + 8 * (10 + 40 / 8 * 0.5))
    crowded = sampling_seconds(COSTS, 4, LOAD, 2, refills=True)
    assert crowded == pytest.approx(12 + 20 * (10 + 2 * 0.5))
    in_batches = sampling_seconds(COSTS, 4, LOAD, 2, refills=False)
    assert in_batches == pytest.approx(12 + 4 * 8 * (10 + 40 / 32 * 0.5))
    bound = sampling_seconds(replace(COSTS, decode_compute=100.0), 4, LOAD, 0, refills=True)
    assert bound == pytest.approx(12 + 8 * 100 * 5)
    assert sampling_seconds(COSTS, 0, LOAD, 0, refills=True) == 0.0


def test_a_step_of_one_process_is_the_sum_of_its_parts() -> None:
    one = step_time(COSTS, replace(LOAD, slices=2, old_scores=True), Layout(1), Traffic(1000, sync=50), LINKS)
    assert one.parts == pytest.approx(
        {
            "sampling": 12 + 8 * 12.5, "gathering weights": 0, "scoring at rollout weights": 2 + 88, "reference": 0,
            "forward": 2 + 88, "backward": 176, "exchange": 0, "update": 30, "weight sync": 0,
        }
    )  # fmt: skip
    assert one.total == pytest.approx(sum(one.parts.values()))
    assert one.bottleneck == "backward"
    assert one.tokens_per_second == pytest.approx(40 / one.total)


def test_processes_share_the_prompts_and_pay_for_the_exchange() -> None:
    traffic = Traffic(each_slice=1000, each_step=200)
    two = step_time(COSTS, LOAD, Layout(2), traffic, LINKS, updated=0.5)
    assert (two.forward, two.backward, two.update) == pytest.approx((1 + 44, 88, 15))
    assert two.exchange == pytest.approx(1200 / 2 / 100)
    assert step_time(COSTS, LOAD, Layout(2), traffic, replace(LINKS, overlap=1.0)).exchange == 0.0
    # a prompt more than divides costs the step as much as if every process had one more
    three = step_time(COSTS, LOAD, Layout(3), traffic, LINKS)
    assert three.forward == two.forward


def test_sampling_ahead_hides_the_shorter_side() -> None:
    layout = Layout(trainers=2, engines=1, ahead=True)
    ahead = step_time(COSTS, LOAD, layout, Traffic(0, sync=50), LINKS)
    assert (ahead.sampling, ahead.trainer, ahead.sync) == pytest.approx((112, 163, 5))
    assert ahead.total == pytest.approx(163 + 5)
    assert ahead.bottleneck == "backward"
    through_files = step_time(COSTS, LOAD, layout, Traffic(0, sync=50), replace(LINKS, engines=25.0))
    assert through_files.sync == pytest.approx(2)
    assert step_time(COSTS, LOAD, replace(layout, ahead=False), Traffic(0, sync=50), LINKS).total == pytest.approx(280)
    slow = step_time(COSTS, LOAD, layout, Traffic(0), LINKS, sampler=replace(COSTS, decode_step=100.0))
    assert (slow.bottleneck, slow.total) == ("sampling", slow.sampling)


def test_a_rollout_is_shared_out_over_its_steps() -> None:
    """Two minibatches gone through three times: six steps, each with a third of a step's sampling and scoring."""
    load = replace(LOAD, minibatches=2, iterations=3, rounds=2, old_scores=True)
    step = step_time(COSTS, load, Layout(1), Traffic(0), LINKS)
    assert step.sampling == pytest.approx(4 * (6 + 8 * (10 + 20 / 8 * 0.5)) / 6)
    assert step.old_scores == pytest.approx(89 / 3)
    assert step.forward == pytest.approx(89)
    ahead = step_time(COSTS, load, Layout(1, engines=1, ahead=True), Traffic(0), LINKS)
    assert ahead.sampling == pytest.approx((24 + 8 * (10 + 80 / 8 * 0.5)) / 6)  # asked for all at once


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ddp", Traffic(4000, sync=2000)),
        ("zero2", Traffic(2000, 2000, sync=2000)),
        ("fsdp", Traffic(6000, each_rollout=2000, sync=2000)),
        ("zero3", Traffic(6000, each_rollout=2000, sync=2000)),
    ],
)
def test_bytes_of_an_exchange(kind: str, expected: Traffic) -> None:
    """1000 weights of two bytes."""
    assert traffic_of(SHAPE, sharding(kind, 4), to_engines=True) == expected
    assert traffic_of(SHAPE, sharding(kind, 4), to_engines=False).sync == 0


def test_costs_of_a_gpu_are_operations_and_bytes() -> None:
    compute = ComputeShape(body=500, trained=500, head=40, head_is_trained=True, layers=2, attention=4)
    work = Work(tokens=7, pairs=11, scored=3)
    assert pass_rate(compute, 10.0).seconds(work) == pytest.approx(forward_flops(compute, work) / 10)
    assert pass_rate(compute, 10.0, backward=True).seconds(work) == pytest.approx(backward_flops(compute, work) / 10)
    gpu, assumed = GPUS["h100"], Assumptions()
    costs = costs_of(gpu, SHAPE, compute, 100.0, assumed, compiled=True)
    assert costs.decode_step == pytest.approx(2000 / (3.35e12 * 0.6))
    assert costs.decode_token == pytest.approx(100 * 16 / (3.35e12 * 0.6))  # 2 layers, keys and values of 2 numbers
    assert costs.decode_compute == pytest.approx((2 * 540 + 4 * 2 * 4 * 100) / (989e12 * 0.6))
    assert costs.update == pytest.approx((10 * 4000 + 2000) / 3.35e12)
    written_out = costs_of(gpu, SHAPE, compute, 100.0, assumed, compiled=False)
    assert written_out.decode_step - costs.decode_step == pytest.approx(2 * 40 * 5e-6)
    wide = costs_of(gpu, replace(SHAPE, itemsize=4), compute, 100.0, assumed, compiled=True)
    assert wide.forward.token / costs.forward.token == pytest.approx(989 / 67)  # float32 is not shortened
    assert links_of(gpu, 8, assumed) == Links(450e9 * 0.7, 50e9 * 0.7, 8, 0.8)
    assert links_of(gpu, 8, assumed, by_files=True).engines == 2e9
    over_two = spread_over(costs, 2, 0.8)
    assert over_two.decode_step == pytest.approx(costs.decode_step / 1.6)
    assert (spread_over(costs, 1, 0.8), over_two.forward) == (costs, costs.forward)

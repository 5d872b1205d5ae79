"""Speed of a step from what it ran and how long that took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import configured, inside_run

from maxent_grpo.training.loop import run_training
from maxent_grpo.training.throughput import StepWork, Yardstick, throughput_metrics
from maxent_grpo.training.types.flops import (
    ComputeShape,
    Work,
    backward_flops,
    forward_flops,
    sampling_work,
    scoring_work,
)
from maxent_grpo.training.types.generation import SamplingCounters

SHAPE = ComputeShape(body=1000, trained=1000, head=100, head_is_trained=True, layers=1, attention=10)
ROLLOUT, SCORED, TRAINED = Work(10, 20, 5), Work(20, 40, 10), Work(15, 30, 8)
PHASES = {"rollout": 2.0, "policy": 1.0, "backward": 2.0, "evaluation": 10.0}


def test_utilisation_is_operations_over_what_the_machine_could_have_done() -> None:
    work = StepWork(SamplingCounters(40, ROLLOUT), SCORED, TRAINED, tokens=30)
    found = throughput_metrics(work, PHASES, 20.0, Yardstick(SHAPE, 1e6))
    rollout = forward_flops(SHAPE, ROLLOUT)
    update = forward_flops(SHAPE, TRAINED) + backward_flops(SHAPE, TRAINED)
    other = forward_flops(SHAPE, SCORED - TRAINED)
    assert found == {
        "throughput/tokens_per_second": 1.5,
        "throughput/sampled_tokens_per_second": 20.0,
        "throughput/mfu": (rollout + update + other) / (10.0 * 1e6),
        "throughput/mfu_rollout": rollout / (2.0 * 1e6),
        "throughput/mfu_update": update / (3.0 * 1e6),
    }


def test_what_did_not_happen_or_is_not_known_is_absent() -> None:
    work = StepWork(SamplingCounters(), SCORED, TRAINED, tokens=30)
    found = throughput_metrics(work, {"policy": 1.0}, 20.0, Yardstick(SHAPE, 1e6))
    assert set(found) == {"throughput/tokens_per_second", "throughput/mfu", "throughput/mfu_update"}
    assert set(throughput_metrics(work, {}, 20.0, None)) == {"throughput/tokens_per_second"}


@pytest.mark.parametrize(
    ("overrides", "untrained"),
    [
        ((), 0),
        (("scoring.kl_beta=0.1",), 1),
        (("scoring.batching.share_prompts=false", "scoring.batching.logprob_chunk_size=3"), 0),
        (("optimization.minibatches=2",), 2),
    ],
    ids=["policy", "policy and reference", "another layout", "old policy of two steps"],
)
def test_a_run_counts_what_it_ran(overrides: tuple[str, ...], untrained: int, tmp_path: Path) -> None:
    """Whatever the layout; ``untrained`` is the passes without gradient that come before the first update."""
    config = configured(tmp_path / "run", "optimization.total_training_steps=1", "evaluation.enabled=false", *overrides)
    kept: list[StepWork] = []

    def body(ctx: Any, resources: Any, parts: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            name = "maxent_grpo.training.loop.throughput_metrics"
            patch.setattr(name, lambda work, *rest: kept.append(work) or throughput_metrics(work, *rest))
            run_training(ctx, resources, parts)
        return parts.buffer.experience

    experience = inside_run(config, body)
    [work] = kept
    groups = _groups(tmp_path / "run")
    prompts = 7  # the prompts of this task have one length
    assert work.trained == sum((scoring_work(prompts, group) for group in groups), Work())
    assert work.tokens == sum(map(sum, groups))
    if experience is None:
        assert work.sampled.work == sum((sampling_work(prompts, group) for group in groups), Work())
        assert work.sampled.tokens == sum(map(sum, groups))
        assert work.scored == sum([work.trained] * (1 + untrained), Work())
    else:
        assert work.sampled.tokens > work.tokens
        assert work.scored - work.trained == _scored(experience, prompts)


def _groups(run_dir: Path) -> list[list[int]]:
    from support.runs import completion_lines

    lengths: dict[str, list[int]] = {}
    for line in completion_lines(run_dir):
        lengths.setdefault(line["row_id"], []).append(line["num_tokens"])
    return list(lengths.values())


def _scored(experience: Any, prompts: int) -> Work:
    lengths = [len(record.token_ids) for record in experience.graded.records]
    size = experience.group_size
    parts = [scoring_work(prompts, lengths[at : at + size]) for at in range(0, len(lengths), size)]
    return sum(parts, Work())

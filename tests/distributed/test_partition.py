"""Which process samples which prompts: all of them, once each, in an order that every process knows."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch

from maxent_grpo.training.experience import local_loader_ranges, local_portions, places_of, portion_ranges
from maxent_grpo.training.group_order import in_order, order_of


def process(rank: int, world: int, per_step: int, loader_batches: int) -> Any:
    """The part of a context that says where a process stands."""
    schedule = SimpleNamespace(prompts_per_step=per_step, grad_accum_steps=loader_batches)
    accelerator = SimpleNamespace(process_index=rank, num_processes=world)
    return SimpleNamespace(
        runtime=SimpleNamespace(accelerator=accelerator), optimization=SimpleNamespace(schedule=schedule)
    )


def cases(count: int) -> list[tuple[int, int, int, int]]:
    """(prompts of a rollout, prompts of a step, processes, loader batches)."""
    draw = random.Random(5)
    drawn = [(draw.randint(1, 40), draw.randint(1, 12), draw.randint(1, 7), draw.randint(1, 5)) for _ in range(count)]
    return [*drawn, (1, 1, 4, 3), (4, 4, 3, 4), (7, 3, 2, 3)]


def test_prompts_are_shared_out_without_repeats_or_gaps() -> None:
    for num_prompts, per_step, world, batches in cases(200):
        rows = [{"prompt": object()} for _ in range(num_prompts)]
        everyone = [process(rank, world, per_step, batches) for rank in range(world)]
        places = [
            places_of(ctx, rows, [row["prompt"] for part in local_portions(rows, ctx) for row in part])
            for ctx in everyone
        ]
        assert sorted(place for own in places for place in own) == list(range(num_prompts))
        assert all(own == sorted(own) for own in places)
        for number, step in enumerate(portion_ranges(num_prompts, everyone[0].optimization.schedule)):
            shares = [local_portions(list(range(num_prompts)), ctx)[number] for ctx in everyone]
            assert sorted(place for share in shares for place in share) == list(range(step.first, step.last))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1, "no process has two prompts more than another"


def test_processes_sample_equally_often_and_each_prompt_once() -> None:
    for num_prompts, _, world, batches in cases(200):
        ranges = [local_loader_ranges(num_prompts, process(rank, world, num_prompts, batches)) for rank in range(world)]
        assert len({len(parts) for parts in ranges}) == 1
        for rank, parts in enumerate(ranges):
            rows = [row for part in parts for row in range(part.first, part.last)]
            assert rows == list(range(len(range(rank, num_prompts, world))))


def test_groups_are_put_together_in_the_order_of_their_places() -> None:
    for num_prompts, per_step, world, _ in cases(50):
        rows = [{"prompt": object()} for _ in range(num_prompts)]
        places = []
        for rank in range(world):
            ctx = process(rank, world, per_step, 1)
            places.append(
                places_of(ctx, rows, [row["prompt"] for part in local_portions(rows, ctx) for row in part], 100)
            )
        values = [{"place": torch.tensor(own, dtype=torch.long), "absent": None} for own in places]
        joined = in_order(values, order_of(places))
        assert joined["place"].tolist() == list(range(100, 100 + num_prompts))
        assert joined["absent"] is None

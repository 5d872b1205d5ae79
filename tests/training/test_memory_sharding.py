"""What each of several processes holds, against arithmetic by hand."""

import pytest

from maxent_grpo.training.memory import SLICE_GRADIENTS, MemoryEstimate, Part, Phase
from maxent_grpo.training.memory_engine import PASSES, engine_room
from maxent_grpo.training.memory_sharding import in_shards, sharding
from maxent_grpo.training.memory_sizes import Held, ModelShape, Runs

SHAPE = ModelShape(
    layers=3, hidden=4, heads=2, kv_heads=1, head_dim=2, intermediate=8, vocab=10, tied=False, itemsize=2,
    num_parameters=1000,
)  # fmt: skip
"""Embedding and head have 40 weights each; a layer 920 / 3, rounded up to bytes: 614."""
WHOLE = MemoryEstimate(
    0,
    (
        Part("weights", 2000, 80, Held.weights),
        Part("optimiser states", 8001, 160, Held.states),
        Part("copy", 4000, 160, Held.states),
    ),
    (
        Phase("sampling", (Part("cache", 50, 50),), Runs.sampling),
        Phase("reference scoring", (Part("activations", 60, 60),), Runs.scoring),
        Phase(
            "backward", (Part(SLICE_GRADIENTS, 2000, 80, Held.gradients), Part("activations", 70, 70)), Runs.backward
        ),
        Phase("optimiser step", (Part("gradients", 4000, 160, Held.gradients),)),
    ),
    on_gpu=True,
    returned_from=0,
)


def sizes(estimate: MemoryEstimate) -> list[int]:
    """Everything that is always there, then each phase."""
    return [sum(part.size for part in estimate.persistent), *(phase.size for phase in estimate.phases)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ddp", [2000 + 8001 + 4000 + 2000, 50, 60, 2070, 4000]),
        ("zero2", [2000 + 2001 + 1000, 50, 60, 500 + 70 + 1228, 1000]),
        ("zero3", [500 + 2001 + 1000, 2000 + 50, 2000 + 60, 1388 + 500 + 70 + 1228, 1000]),
        ("fsdp", [2001 + 1000, 2000 + 50, 2000 + 60, 1388 + 1000 + 70 + 1228, 1000]),
    ],
)
def test_what_one_of_four_holds(kind: str, expected: list[int]) -> None:
    """Gathered for a pass: both ends, 160 bytes, and two layers of 614; their gradients wait for their owners, 1228.
    Under FSDP the float32 copy is all there is of the weights, and a slice's gradients come in its type."""
    assert sizes(in_shards(WHOLE, SHAPE, sharding(kind, 4))) == expected


def test_a_process_alone_holds_everything() -> None:
    for kind in ("ddp", "zero2", "fsdp", "zero3"):
        assert in_shards(WHOLE, SHAPE, sharding(kind, 1)) == WHOLE


def test_room_of_an_engine() -> None:
    memory = 80 * 2**30
    room = engine_room(SHAPE, memory, 0.5, 2, 10.0, 1024)
    assert (room.share, room.weights, room.cache) == (memory // 2, 1000, memory // 2 - 1000 - PASSES)
    assert room.sequences == 1024  # as many as vLLM takes at most
    small = engine_room(SHAPE, 10 * 2**30, 0.5, 1, 2**20, 256)
    # 3 layers, keys and values of 2 numbers of 2 bytes: 24 bytes a token
    assert small.sequences == (5 * 2**30 - 2000 - PASSES) // (24 * 2**20)
    assert engine_room(SHAPE, 2**30, 0.5, 1, 10.0, 256).sequences == 0

"""What processes that train together each hold: whole copies, or a part of weights, gradients and optimiser states; in bytes.

    ddp      every process holds everything, and exchanges gradients through buckets that are a second copy of them
    zero2    each holds 1/W of gradients and optimiser states, and all weights
    zero3    each holds 1/W of everything; a layer's weights are whole while it runs, the next layer's already on their way
    fsdp     the same by torch, and of weights that are trained as float32 numbers these parts are all there is

with W processes (arXiv 1910.02054, section 5; 2304.11277, section 3). What runs without gradient, whose passes differ from process
to process, has all weights put together for as long as it lasts. Activations, logits and caches belong to the sequences of a
process and are not divided: more processes have fewer sequences each. A reference is a model of its own, whole in each process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from maxent_grpo.training.memory import SLICE_GRADIENTS, MemoryEstimate, Part, Phase
from maxent_grpo.training.memory_sizes import Held, ModelShape, Runs

LAYERS_AT_ONCE = 2
"""The layer that runs and the one that is fetched meanwhile."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """What of the trained state is divided by how many processes."""

    processes: int = 1
    divided: frozenset[Held] = frozenset()
    buckets: bool = False
    """Gradients are exchanged through copies of them."""
    whole_for: frozenset[Runs] = frozenset()
    """What divided weights are put together as a whole for; anything else has them layer by layer."""
    one_copy: bool = False
    """A float32 copy is the only one of the weights, and gradients are of its type; a layer's are rounded as it is fetched."""
    elsewhere: frozenset[Held] = frozenset()
    """What of these is kept in the main memory of the machine."""

    def share(self, size: int, held: Held) -> int:
        """What a process holds of a part of that kind."""
        return -(-size // self.processes) if held in self.divided else size


WEIGHTS, GRADIENTS, STATES = Held.weights, Held.gradients, Held.states
ALL = frozenset({WEIGHTS, GRADIENTS, STATES})
WITHOUT_GRADIENT = frozenset({Runs.sampling, Runs.scoring})
KINDS: Mapping[str, Sharding] = {
    "ddp": Sharding(buckets=True),
    "zero2": Sharding(divided=frozenset({GRADIENTS, STATES})),
    "zero3": Sharding(divided=ALL, whole_for=WITHOUT_GRADIENT),
    "fsdp": Sharding(divided=ALL, whole_for=WITHOUT_GRADIENT, one_copy=True),
}


def sharding(kind: str, processes: int) -> Sharding:
    """How ``processes`` hold a model under one of ``KINDS``; one process alone holds everything, whatever the kind."""
    return Sharding() if processes == 1 else replace(KINDS[kind], processes=processes)


def in_shards(whole: MemoryEstimate, shape: ModelShape, how: Sharding) -> MemoryEstimate:
    """The memory of one of several processes, from that of a process that has its sequences and holds everything."""
    if how.processes == 1:
        return whole
    persistent = [
        _share(part, how) for part in whole.persistent if not (_is_copied(shape, how) and part.held is WEIGHTS)
    ]
    if how.buckets:
        persistent.append(Part("buckets of the exchange", shape.trained, shape.trained_block))
    phases = tuple(
        replace(phase, parts=(*_gathered(phase, shape, how), *_shares(phase, shape, how))) for phase in whole.phases
    )
    return replace(whole, persistent=tuple(persistent), phases=phases)


def _is_copied(shape: ModelShape, how: Sharding) -> bool:
    """Whether there are no weights in their own type but those that are fetched."""
    return how.one_copy and shape.master > 0


def _shares(phase: Phase, shape: ModelShape, how: Sharding) -> list[Part]:
    """The parts of a phase; where gradients arrive in the type of the copy, a slice has no others of its own."""
    of_slice = [part for part in phase.parts if part.name == SLICE_GRADIENTS]
    if not (of_slice and _is_copied(shape, how)):
        return [_share(part, how) for part in phase.parts]
    rest = [part for part in phase.parts if part.name != SLICE_GRADIENTS]
    if not any(part.held is GRADIENTS for part in rest):
        rest.insert(0, Part("gradients", shape.updated, shape.updated_block, GRADIENTS))
    return [_share(part, how) for part in rest]


def _share(part: Part, how: Sharding) -> Part:
    size = 0 if part.held in how.elsewhere else how.share(part.size, part.held)
    return replace(part, size=size, block=how.share(part.block, part.held))


def _gathered(phase: Phase, shape: ModelShape, how: Sharding) -> list[Part]:
    """What a phase has whole of weights and gradients that are divided."""
    parts: list[Part] = []
    if phase.runs is Runs.nothing:
        return parts
    layers = min(LAYERS_AT_ONCE, shape.layers) * shape.layer
    if Held.weights in how.divided:
        whole = phase.runs in how.whole_for
        parts.append(Part("gathered weights", shape.weights if whole else shape.ends + layers, shape.embedding))
    if Held.gradients in how.divided and phase.runs is Runs.backward and not shape.adapter:
        # those of a layer leave while the layer before it makes its own
        parts.append(Part("gradients on their way", max(layers, shape.ends), shape.embedding))
    return parts

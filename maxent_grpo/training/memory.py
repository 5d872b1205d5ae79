"""Memory of a decoder-only transformer in training and sampling, as functions of sizes; every result is in bytes.

The layers are those of the Llama family: two root-mean-square norms, rotary attention whose keys and values are repeated to
all heads when a mask is given, and a gated feed-forward layer. ``saved_bytes`` counts exactly what autograd keeps for the
backward pass; the other functions add the tensors that are alive together at the worst moment of a phase. Left out: the
context and workspaces of a GPU, the masks of prompts so short that a layout makes one, and what an allocator loses between blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from maxent_grpo.objective.sampling import BLOCK_TOKENS
from maxent_grpo.training.generation.kv_cache import ROOM_TOKENS
from maxent_grpo.training.generation.packed_products import LEAST_NUMBERS
from maxent_grpo.training.generation.shared_prefix import sharing_pays
from maxent_grpo.training.memory_head import head_backward, head_block, head_forward, head_saved
from maxent_grpo.training.memory_sizes import INDEX_BYTES, Held, ModelShape, Pass, Runs, ScoringPath

MIB = 2**20
SLICE_GRADIENTS = "gradients of the slice"
HEAP_BLOCK = 32 * MIB
"""From this size on the C library takes a block from the system and gives it back at once; freed smaller ones it keeps. It learns to,
unless ``BLOCK_VARIABLE`` says another size."""
BLOCK_VARIABLE = "MALLOC_MMAP_THRESHOLD_"


@dataclass(frozen=True, slots=True)
class Part:
    """Memory of one component; ``block`` is the size of its largest tensor."""

    name: str
    size: int
    block: int
    held: Held = Held.own


@dataclass(frozen=True, slots=True)
class Phase:
    """What is alive at the worst moment of a part of a step, besides what is always there."""

    name: str
    parts: tuple[Part, ...]
    runs: Runs = Runs.nothing

    @property
    def size(self) -> int:
        """All parts together."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Peak = process + persistent + the worst phase (+ what the C library keeps of other phases, on the CPU)."""

    process: int
    """The program itself: interpreter, libraries, data. 0 for the memory of a GPU."""
    persistent: tuple[Part, ...]
    phases: tuple[Phase, ...]
    on_gpu: bool
    returned_from: int
    """From this size on a freed block is given back; smaller ones stay in the C library's heap. 0 is a GPU's allocator, which hands
    all of them on [bytes]."""

    def kept(self, phase: Phase) -> int:
        """Memory that other phases have used and the heap has kept, beyond what ``phase`` uses of it itself."""
        return max(map(self._small, self.phases), default=0) - self._small(phase)

    def peak_of(self, phase: Phase) -> int:
        """Memory of the process while ``phase`` is at its worst."""
        return self.process + sum(part.size for part in self.persistent) + phase.size + self.kept(phase)

    @property
    def worst(self) -> Phase:
        """The phase that sets the peak."""
        return max(self.phases, key=self.peak_of)

    @property
    def peak(self) -> int:
        """The largest memory of the process."""
        return self.peak_of(self.worst)

    def _small(self, phase: Phase) -> int:
        return sum(part.size for part in phase.parts if part.block < self.returned_from)


def scoring_pass(
    sequences: int, group: int, shortest: int, longest: int, completion: int, shared: bool, laid_out: bool = False
) -> Pass:
    """The largest pass over ``sequences`` completions of ``completion`` tokens behind prompts of the given lengths.

    Shared prompts put a group, or the part of it that is there, behind one copy; a pass whose size neither divides nor is
    divided by the group's may begin and end inside groups. ``laid_out`` puts them all in one row.
    """
    scored = sequences * completion
    if not shared:
        return Pass(sequences, longest + completion, completion + 1, scored)
    aligned = sequences % group == 0 or group % sequences == 0
    packs = math.ceil(sequences / group) if aligned else (sequences - 2) // group + 2
    if laid_out:
        width = packs * longest + sequences * completion
        return Pass(1, width, width - shortest + 1, scored, masked=False)
    width = longest + min(sequences, group) * completion
    return Pass(packs, width, width - shortest + 1, scored)


def norm_saved(shape: ModelShape) -> int:
    """Per token: the input in 32 bits, the normalised and the scaled one, and the reciprocal root."""
    return shape.hidden * (4 + 2 * shape.itemsize) + 4


def layer_saved(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """What one layer keeps for the backward pass.

    Per token: two norms; query, key, value and output of the attention, under a mask all at full width; four tensors of the
    gated feed-forward layer; and the attention's log-sum-exp per head, or its probabilities if they are written out (in 32
    bits, and again in the model's type where that is another).
    """
    size = shape.itemsize
    probability = 4 if size == 4 else 4 + size
    weights = shape.heads * (one.width * probability if path.eager else shape.wide)
    keys = shape.attention if one.masked else shape.kv_heads * shape.head_dim
    attention = 2 * size * (shape.attention + keys)
    per_token = 2 * norm_saved(shape) + attention + 4 * size * shape.intermediate + weights
    return one.tokens * (per_token + shape.adapter_kept)


def ends_saved(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """What is kept outside the layers: ids, rotations, the additive mask if there is one, the last norm, and the head's input.

    That input is kept at the places whose logits the model makes; a separate head takes those that are scored.
    """
    size = shape.itemsize
    per_token = INDEX_BYTES + 2 * shape.head_dim * size + (norm_saved(shape) - shape.hidden * size)
    mask = one.width**2 if one.masked else 0
    into_head = one.width if one.rows == 1 else one.kept  # of a single row what is kept is no copy, and holds all of it
    at_head = one.scored if path.separate_head else one.rows * into_head
    return one.tokens * per_token + (one.rows * mask + at_head * shape.hidden) * size


def saved_bytes(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """Activations that autograd keeps of one packed pass, up to the logits."""
    layers = shape.layers * (
        one.tokens * shape.hidden * shape.itemsize if path.checkpointing else layer_saved(shape, one, path)
    )
    return layers + ends_saved(shape, one, path)


def layer_work(shape: ModelShape, rows: int, queries: int, keys: int, eager: bool, repeated: bool) -> int:
    """Tensors of one layer in a pass that keeps none: the feed-forward layer's, or the attention's.

    ``repeated`` says whether keys and values are copied to every head.
    """
    tokens, size = rows * queries, shape.itemsize
    feed_forward = tokens * (2 * shape.hidden + 3 * shape.intermediate) * size
    attention = tokens * (2 * shape.hidden + 4 * shape.attention) * size
    if repeated and shape.kv_heads < shape.heads:
        attention += 2 * rows * keys * shape.attention * size
    if eager:
        attention += 2 * tokens * shape.heads * keys * shape.wide
    return max(feed_forward, attention)


def training_phases(shape: ModelShape, passes: Sequence[Pass], path: ScoringPath, more_slices: bool) -> list[Phase]:
    """Forward and backward of one slice: its passes are all kept until the backward pass, which then runs over them.

    Gradients are cleared between steps, so that a forward pass finds them only when slices came before it in its step.
    """
    largest = max(passes, key=lambda one: one.tokens)
    kept = sum(saved_bytes(shape, one, path) for one in passes)
    block = largest.tokens * max(shape.intermediate, shape.attention) * shape.itemsize
    logits_block = head_block(shape, largest, path)
    waiting = sum(head_saved(shape, one, path) for one in passes) - head_saved(shape, largest, path)
    gradients = Part("gradients", shape.updated, shape.updated_block, Held.gradients)
    arriving = [gradients]
    if shape.master:  # a slice's own come in the type of the weights, and are then added to the others
        own = Part(SLICE_GRADIENTS, shape.trained, shape.trained_block, Held.gradients)
        arriving = [own, gradients] if more_slices else [own]
    embeddings = 2 * shape.embedding if shape.tied and not shape.adapter else 0
    recomputed = layer_saved(shape, largest, path) if path.checkpointing else 0
    forward = [
        Part("activations", kept, block),
        Part("logits and log-softmax", waiting + head_forward(shape, largest, path), logits_block),
    ]
    at_head = [
        Part("activations", kept, block),
        Part("logits and log-softmax", waiting + head_backward(shape, largest, path), logits_block),
    ]
    in_layers = [
        *arriving,
        # of a tied matrix the head's gradient waits for the embedding's, and their sum is a tensor of its own
        Part("two more of the tied embedding", embeddings, shape.embedding),
        Part("activations", recomputed + ends_saved(shape, largest, path), block),
    ]
    if more_slices:
        forward, at_head = [gradients, *forward], [gradients, *at_head]
    return [
        Phase("training, forward", tuple(forward), Runs.forward),
        Phase("training, backward", tuple(at_head), Runs.backward),
        Phase("training, end of backward", tuple(in_layers), Runs.backward),
    ]


def scoring_phase(name: str, shape: ModelShape, one: Pass, path: ScoringPath) -> Phase:
    """Scoring without gradient."""
    path = path.without_gradient()
    # without a mask keys are not copied to all heads; what is gathered of completions is less than the feed-forward layer's
    work = layer_work(shape, one.rows, one.width, one.width, path.eager, repeated=one.masked)
    hidden = Part("activations", work + ends_saved(shape, one, path), one.tokens * shape.intermediate * shape.itemsize)
    logits = Part("logits and log-softmax", head_forward(shape, one, path), head_block(shape, one, path))
    return Phase(name, (hidden, logits), Runs.scoring)


def optimizer_phase(shape: ModelShape, lists: bool) -> Phase:
    """AdamW's step: all gradients, and its temporaries of one weight at a time, or of all (``lists``, as on a GPU)."""
    block = shape.updated_block
    temporaries = shape.updated if lists else 2 * block
    return Phase(
        "optimiser step",
        (
            Part("gradients", shape.updated, block, Held.gradients),
            Part("temporaries", temporaries, block, Held.states if lists else Held.own),
        ),
    )


def room_tokens(completion: int) -> int:
    """Places behind a prompt that the key-value cache holds in the end."""
    return completion if completion <= ROOM_TOKENS else math.ceil(completion / ROOM_TOKENS) * ROOM_TOKENS


def draw_bytes(shape: ModelShape, *, restricted: bool, tempered: bool, nucleus: bool, counted: bool) -> int:
    """Per sequence, the tensors over the vocabulary that one token's draw has alive together."""
    size, wide = shape.itemsize, shape.wide
    after = wide if tempered else size  # the division widens
    # logits, those of the support, a wider copy of narrow ones; their distance from the largest, and weights
    drawing = size + (after if tempered or restricted else 0) + (0 if after == wide else wide) + 2 * wide
    if shape.vocab <= 2 * BLOCK_TOKENS:
        # weights, their cumulative sums and a copy in 64 bits; marks
        drawing += 3 * 8 + 1
    restricting = size + (wide if tempered else 0) + (2 * after + 1 if restricted else 0)
    if nucleus:
        # sorted logits, their order, probabilities, two sums in 64 bits, marks
        restricting += 2 * after + 8 + 4 + 2 * 8 + 3
    counts = 2 * 4 + 2 * wide if counted else 0
    return shape.vocab * (max(drawing, restricting) + counts)


def sampling_phase(
    name: str,
    shape: ModelShape,
    *,
    prompts: int,
    sequences: int,
    prompt: int,
    completion: int,
    draw: int,
    eager: bool,
    on_gpu: bool,
) -> Phase:
    """Sampling of ``sequences`` completions together: the prompts' cache, what each completion adds to it, one token's draw.

    A completion has a copy of its prompt, unless the copies would be large and the model's attention takes layouts, as all but eager
    attention does on the CPU. Keys and values are then copied to every head by eager attention alone. Where layouts are taken, weights of
    float32 are copied into the order of the kernels as well, if they are large enough for that; of a model with an adapter only the head's.
    """
    layer_keys = shape.cache_per_token // (2 * shape.layers)
    shared = not eager and not on_gpu and sharing_pays(sequences * prompt * layer_keys)
    room = room_tokens(completion)
    places = room if shared else prompt + room
    work = max(
        layer_work(shape, prompts, prompt, prompt, eager, repeated=eager),
        layer_work(shape, sequences, 1, places, eager, repeated=eager),
    )
    packs = not eager and not on_gpu and shape.itemsize == 4 and shape.hidden**2 > LEAST_NUMBERS
    return Phase(
        name,
        (
            *(
                (Part("packed weights", shape.embedding if shape.adapter else shape.weights, shape.embedding),)
                if packs
                else ()
            ),
            Part("key-value cache", sequences * places * shape.cache_per_token, sequences * places * layer_keys),
            Part("cache of the prompts", prompts * prompt * shape.cache_per_token, prompts * prompt * layer_keys),
            Part("one layer", work, work // 2),
            Part("logits and draw", sequences * draw, sequences * shape.vocab * shape.wide),
        ),
        Runs.sampling,
    )

"""Memory of a decoder-only transformer in training and sampling, as functions of sizes; every result is in bytes.

The layers are those of the Llama family: two root-mean-square norms, rotary attention whose keys and values are repeated to
all heads when a mask is given, and a gated feed-forward layer. ``saved_bytes`` counts exactly what autograd keeps for the
backward pass; the other functions add the tensors that are alive together at the worst moment of a phase. Left out: the
context and workspaces of a GPU, and what an allocator loses between blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from maxent_grpo.objective.sampling import BLOCK_TOKENS
from maxent_grpo.training.generation.kv_cache import ROOM_TOKENS
from maxent_grpo.training.generation.shared_prefix import sharing_pays

MIB = 2**20
HEAP_BLOCK = 32 * MIB
"""From this size on the C library takes a block from the system and gives it back at once; freed smaller ones it keeps."""
INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model; ``itemsize`` is that of a weight and an activation [bytes]."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    itemsize: int
    num_parameters: int
    """Without an adapter's."""
    adapter: int = 0
    """Low-rank matrices, which then are all that is trained; 0 where every weight is [bytes]."""
    adapter_block: int = 0
    """The largest of them [bytes]."""
    adapter_kept: int = 0
    """What the matrices of one layer keep of a token for the backward pass, its inputs in their own type among it [bytes]."""

    @property
    def attention(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def wide(self) -> int:
        """Bytes of a log-probability, which has at least 32 bits."""
        return max(4, self.itemsize)

    @property
    def cache_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.itemsize

    @property
    def embedding(self) -> int:
        """The largest single weight, one row of hidden width for each token of the vocabulary."""
        return self.vocab * self.hidden * self.itemsize

    @property
    def weights(self) -> int:
        """All weights, tied ones once."""
        return self.num_parameters * self.itemsize

    @property
    def trained(self) -> int:
        """What has gradients and optimiser states: the adapter, or all weights."""
        return self.adapter or self.weights

    @property
    def trained_block(self) -> int:
        """The largest single tensor of these."""
        return self.adapter_block or self.embedding

    def without_adapter(self) -> ModelShape:
        """The base, all of it trained."""
        return replace(self, adapter=0, adapter_block=0, adapter_kept=0)


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass for scoring: ``rows`` x ``width`` token places, logits at the last ``kept``, ``scored`` of them read."""

    rows: int
    width: int
    kept: int
    scored: int

    @property
    def tokens(self) -> int:
        """Places fed to the model, padding included."""
        return self.rows * self.width


@dataclass(frozen=True, slots=True)
class ScoringPath:
    """What decides which tensors scoring makes."""

    eager: bool = False
    """Attention probabilities are written out, instead of the fused kernel's one number per query."""
    checkpointing: bool = False
    """Layers are recomputed in the backward pass."""
    restricted: bool = False
    """The support is cut: allowed tokens, top-k, top-p or min-p."""
    tempered: bool = False
    """The temperature is not 1."""
    exact_entropy: bool = False
    entropy_gradient: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Memory of one component; ``block`` is the size of its largest tensor."""

    name: str
    size: int
    block: int

    @property
    def is_returned(self) -> bool:
        """Whether the C library gives it back to the system when it is freed."""
        return self.block >= HEAP_BLOCK


@dataclass(frozen=True, slots=True)
class Phase:
    """What is alive at the worst moment of a part of a step, besides what is always there."""

    name: str
    parts: tuple[Part, ...]

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
    heap: bool
    """Whether freed small blocks stay with the process, as in the C library's heap; a GPU allocator hands them on."""

    def kept(self, phase: Phase) -> int:
        """Memory that other phases have used and the heap has kept, beyond what ``phase`` uses of it itself."""
        if not self.heap:
            return 0
        return max(map(_small, self.phases), default=0) - _small(phase)

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


def _small(phase: Phase) -> int:
    return sum(part.size for part in phase.parts if not part.is_returned)


def scoring_pass(sequences: int, group: int, shortest: int, longest: int, completion: int, shared: bool) -> Pass:
    """The largest pass over ``sequences`` completions of ``completion`` tokens behind prompts of the given lengths.

    Shared prompts put a group, or the part of it that is there, behind one copy; a pass whose size neither divides nor is
    divided by the group's may begin and end inside groups.
    """
    scored = sequences * completion
    if not shared:
        return Pass(sequences, longest + completion, completion + 1, scored)
    aligned = sequences % group == 0 or group % sequences == 0
    packs = math.ceil(sequences / group) if aligned else (sequences - 2) // group + 2
    width = longest + min(sequences, group) * completion
    return Pass(packs, width, width - shortest + 1, scored)


def norm_saved(shape: ModelShape) -> int:
    """Per token: the input in 32 bits, the normalised and the scaled one, and the reciprocal root."""
    return shape.hidden * (4 + 2 * shape.itemsize) + 4


def layer_saved(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """What one layer keeps for the backward pass.

    Per token: two norms; query, key, value and output of the attention, all at full width; four tensors of the gated
    feed-forward layer; and the attention's log-sum-exp per head, or its probabilities if they are written out (in 32 bits,
    and again in the model's type where that is another).
    """
    size = shape.itemsize
    probability = 4 if size == 4 else 4 + size
    weights = shape.heads * (one.width * probability if path.eager else shape.wide)
    per_token = 2 * norm_saved(shape) + 4 * size * (shape.attention + shape.intermediate) + weights
    return one.tokens * (per_token + shape.adapter_kept)


def ends_saved(shape: ModelShape, one: Pass) -> int:
    """What is kept outside the layers: ids, rotations, the additive mask, the last norm, and the head's input."""
    size = shape.itemsize
    per_token = INDEX_BYTES + 2 * shape.head_dim * size + (norm_saved(shape) - shape.hidden * size)
    return one.tokens * per_token + one.rows * (one.width**2 + one.kept * shape.hidden) * size


def saved_bytes(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """Activations that autograd keeps of one packed pass, up to the logits."""
    layers = shape.layers * (
        one.tokens * shape.hidden * shape.itemsize if path.checkpointing else layer_saved(shape, one, path)
    )
    return layers + ends_saved(shape, one)


def head_saved(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """What autograd keeps from the logits on: log-probabilities [scored, vocab], indices, and what entropy needs."""
    per_value = shape.wide + (1 if path.restricted else 0)
    if path.exact_entropy and path.entropy_gradient:
        per_value += 1 + 2 * shape.wide
    return one.scored * (shape.vocab * per_value + 5 * INDEX_BYTES)


def head_forward(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """Worst moment between logits and log-probabilities: choosing rows, restricting, log-softmax, or entropy."""
    size, wide = shape.itemsize, shape.wide
    cut, tempered = (1 if path.restricted else 0), (size if path.tempered else 0)
    choosing = one.rows * one.kept * shape.vocab * size + one.scored * shape.vocab * size
    restricting = size + tempered + cut * (2 * size + 1)
    normalising = size + max(tempered, cut * size) + cut + (0 if size == wide else wide) + wide
    measuring = 0
    if path.exact_entropy:
        # logits, log-probs, which are possible, a copy without infinities, its exp() * itself, zeros, and their choice
        measuring = size + wide + cut + 1 + 4 * wide + (wide if path.entropy_gradient else 0)
    return max(choosing, one.scored * shape.vocab * max(restricting, normalising, measuring))


def head_backward(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """Worst moment on the way back: the log-softmax's gradients, or those of all logits and of the output matrix."""
    values = one.scored * shape.vocab
    through_softmax = head_saved(shape, one, path) + 2 * values * shape.wide
    logits = one.rows * one.kept * shape.vocab * shape.itemsize
    matrix = 0 if shape.adapter else shape.embedding
    return max(through_softmax, logits + values * shape.itemsize, logits + matrix)


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
    logits_block = largest.scored * shape.vocab * shape.wide
    waiting = sum(head_saved(shape, one, path) for one in passes) - head_saved(shape, largest, path)
    gradients = Part("gradients", shape.trained, shape.trained_block)
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
        gradients,
        # of a tied matrix the head's gradient waits for the embedding's, and their sum is a tensor of its own
        Part("two more of the tied embedding", embeddings, shape.embedding),
        Part("activations", recomputed + ends_saved(shape, largest), block),
    ]
    if more_slices:
        forward, at_head = [gradients, *forward], [gradients, *at_head]
    return [
        Phase("training, forward", tuple(forward)),
        Phase("training, backward", tuple(at_head)),
        Phase("training, end of backward", tuple(in_layers)),
    ]


def scoring_phase(name: str, shape: ModelShape, one: Pass, path: ScoringPath) -> Phase:
    """Scoring without gradient."""
    work = layer_work(shape, one.rows, one.width, one.width, path.eager, repeated=True)
    hidden = Part("activations", work + ends_saved(shape, one), one.tokens * shape.intermediate * shape.itemsize)
    logits = Part("logits and log-softmax", head_forward(shape, one, path), one.scored * shape.vocab * shape.wide)
    return Phase(name, (hidden, logits))


def optimizer_phase(shape: ModelShape, lists: bool) -> Phase:
    """AdamW's step: all gradients, and its temporaries of one weight at a time, or of all (``lists``, as on a GPU)."""
    block = shape.trained_block
    temporaries = shape.trained if lists else 2 * block
    return Phase("optimiser step", (Part("gradients", shape.trained, block), Part("temporaries", temporaries, block)))


def room_tokens(completion: int) -> int:
    """Places behind a prompt that the key-value cache holds in the end."""
    return completion if completion <= ROOM_TOKENS else math.ceil(completion / ROOM_TOKENS) * ROOM_TOKENS


def draw_bytes(shape: ModelShape, *, restricted: bool, tempered: bool, nucleus: bool, counted: bool) -> int:
    """Per sequence, the tensors over the vocabulary that one token's draw has alive together."""
    size, wide = shape.itemsize, shape.wide
    # logits, those of the support, a wider copy of narrow ones; their distance from the largest, and weights
    drawing = size + (size if tempered or restricted else 0) + (0 if size == wide else wide) + 2 * wide
    if shape.vocab <= 2 * BLOCK_TOKENS:
        # weights, their cumulative sums and a copy in 64 bits; marks
        drawing += 3 * 8 + 1
    restricting = size + (size if tempered else 0) + (2 * size + 1 if restricted else 0)
    if nucleus:
        # sorted logits, their order, probabilities, two sums in 64 bits, marks
        restricting += 2 * size + 8 + 4 + 2 * 8 + 3
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
    attention does on the CPU. Keys and values are then copied to every head by eager attention alone.
    """
    layer_keys = shape.cache_per_token // (2 * shape.layers)
    shared = not eager and not on_gpu and sharing_pays(sequences * prompt * layer_keys)
    room = room_tokens(completion)
    places = room if shared else prompt + room
    work = max(
        layer_work(shape, prompts, prompt, prompt, eager, repeated=eager),
        layer_work(shape, sequences, 1, places, eager, repeated=eager),
    )
    return Phase(
        name,
        (
            Part("key-value cache", sequences * places * shape.cache_per_token, sequences * places * layer_keys),
            Part("cache of the prompts", prompts * prompt * shape.cache_per_token, prompts * prompt * layer_keys),
            Part("one layer", work, work // 2),
            Part("logits and draw", sequences * draw, sequences * shape.vocab * shape.wide),
        ),
    )

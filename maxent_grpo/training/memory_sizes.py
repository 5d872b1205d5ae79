"""The sizes that a run's memory follows from: of the model, of a forward pass, and what scoring makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

INDEX_BYTES = 8


class Held(StrEnum):
    """What a part of memory consists of, as far as processes may divide it among them."""

    own = "own"
    """Of this process alone: activations, logits, caches."""
    weights = "weights"
    gradients = "gradients"
    states = "states"
    """Of the optimiser: moments, and the float32 copy."""


class Runs(StrEnum):
    """What a phase runs the model for, which decides what it needs of weights and gradients that are divided."""

    nothing = "nothing"
    sampling = "sampling"
    scoring = "scoring"
    """Without gradient."""
    forward = "forward"
    backward = "backward"


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
    def ends(self) -> int:
        """Embedding and output head, one matrix where they are tied."""
        return self.embedding * (1 if self.tied else 2)

    @property
    def layer(self) -> int:
        """The weights of one layer."""
        return -(-(self.weights - self.ends) // self.layers)

    @property
    def trained(self) -> int:
        """What has gradients and optimiser states: the adapter, or all weights."""
        return self.adapter or self.weights

    @property
    def trained_block(self) -> int:
        """The largest single tensor of these."""
        return self.adapter_block or self.embedding

    @property
    def master(self) -> int:
        """The float32 copy that weights of fewer bits are trained as; an adapter's matrices have their bits themselves."""
        return 4 * self.num_parameters if self.itemsize < 4 and not self.adapter else 0

    @property
    def updated(self) -> int:
        """What the optimiser moves, and has a gradient and two states of each: the copy where there is one."""
        return self.master or self.trained

    @property
    def updated_block(self) -> int:
        """The largest single tensor of these."""
        return 4 * self.vocab * self.hidden if self.master else self.trained_block

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
    masked: bool = True
    """Attention gets a mask for every pair of positions; otherwise a layout of prompts and completions."""

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
    separate_head: bool = False
    """Logits are made a few rows at a time from what goes into the output head, rather than by the model all at once."""
    foreseen: bool = False
    """With a separate head: the gradients of the head are formed in the forward pass."""
    on_gpu: bool = False

    def without_gradient(self) -> ScoringPath:
        """The same path where nothing is differentiated."""
        return replace(self, foreseen=False)

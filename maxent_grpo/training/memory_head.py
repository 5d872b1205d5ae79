"""Memory from the hidden states on: logits of all tokens as the model makes them, or of a few rows at a time; in bytes."""

from __future__ import annotations

from dataclasses import replace

from maxent_grpo.objective.fused_head import rows_at_once
from maxent_grpo.training.memory_sizes import INDEX_BYTES, ModelShape, Pass, ScoringPath


def head_saved(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """What autograd keeps from the logits on: log-probabilities [scored, vocab], indices, and what entropy needs.

    A separate head keeps numbers of the tokens alone, and the gradients that it has formed already.
    """
    if path.separate_head:
        per_token = 5 * INDEX_BYTES + shape.wide * (2 if path.exact_entropy else 1)
        if path.foreseen:
            per_token += shape.wide * (2 if path.entropy_gradient else 1)
        return one.scored * per_token + (head_gradients(shape, one) if path.foreseen else 0)
    per_value = shape.wide + (1 if path.restricted else 0)
    if path.exact_entropy and path.entropy_gradient:
        per_value += 1 + 2 * shape.wide
    return one.scored * (shape.vocab * per_value + 5 * INDEX_BYTES)


def head_gradients(shape: ModelShape, one: Pass) -> int:
    """Gradients of a separate head: of its matrix, unless that is frozen, and of what goes into it."""
    return one.scored * shape.hidden * shape.itemsize + (0 if shape.adapter else shape.embedding)


def head_rows(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """The buffers of a separate head: a chunk of logits, and a block or two of it, with what restricting makes of a block."""
    size, wide = shape.itemsize, shape.wide
    rows, block = rows_at_once(one.scored, shape.vocab * wide, on_cpu=not path.on_gpu)
    per_value = wide + (0 if size == wide else wide)
    restricting = 2 * wide + 2 + (wide if path.tempered else 0) if path.restricted else 0
    measuring = wide if path.exact_entropy else 0  # p log p
    return shape.vocab * (rows * size + block * (per_value + max(restricting, measuring)))


def head_forward(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """Worst moment between logits and log-probabilities: choosing rows, restricting, log-softmax, or entropy."""
    if path.separate_head:
        wider = 0 if shape.adapter else shape.vocab * shape.hidden * (shape.wide - shape.itemsize)
        results = one.scored * shape.wide * (3 if path.exact_entropy else 2)
        formed = head_gradients(shape, one) + wider if path.foreseen else 0
        return head_rows(shape, one, path) + results + formed
    size, wide = shape.itemsize, shape.wide
    cut, tempered = (1 if path.restricted else 0), (wide if path.tempered else 0)
    after = tempered or size  # the division widens
    choosing = one.rows * one.kept * shape.vocab * size + one.scored * shape.vocab * size
    restricting = size + tempered + cut * (2 * after + 1)
    normalising = size + max(tempered, cut * after) + cut + (0 if after == wide else wide) + wide
    measuring = 0
    if path.exact_entropy:
        # logits, log-probs, which are possible, a copy without infinities, its exp() * itself, zeros, and their choice
        measuring = size + wide + cut + 1 + 4 * wide + (wide if path.entropy_gradient else 0)
    return max(choosing, one.scored * shape.vocab * max(restricting, normalising, measuring))


def head_backward(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """Worst moment on the way back: the log-softmax's gradients, or those of all logits and of the output matrix."""
    if path.separate_head:
        formed = 0 if path.foreseen else head_forward(shape, one, replace(path, foreseen=True))
        return head_saved(shape, one, path) + formed
    values = one.scored * shape.vocab
    through_softmax = head_saved(shape, one, path) + 2 * values * shape.wide
    logits = one.rows * one.kept * shape.vocab * shape.itemsize
    matrix = 0 if shape.adapter else shape.embedding
    return max(through_softmax, logits + values * shape.itemsize, logits + matrix)


def head_block(shape: ModelShape, one: Pass, path: ScoringPath) -> int:
    """The largest tensor over the vocabulary."""
    if not path.separate_head:
        return one.scored * shape.vocab * shape.wide
    rows, _ = rows_at_once(one.scored, shape.vocab * shape.wide, on_cpu=not path.on_gpu)
    return rows * shape.vocab * shape.itemsize

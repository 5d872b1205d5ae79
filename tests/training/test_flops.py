"""Counted operations, against torch's own counter and by hand."""

from __future__ import annotations

import pytest
import torch
from support.tiny import tiny_llama
from torch.utils.flop_counter import FlopCounterMode

from maxent_grpo.models.compute_shape import compute_shape
from maxent_grpo.training.types.flops import (
    ComputeShape,
    Work,
    backward_flops,
    forward_flops,
    sampling_work,
    scoring_work,
)


def test_a_shape_of_known_sizes() -> None:
    shape = ComputeShape(body=100, trained=10, head=50, head_is_trained=False, layers=3, attention=8)
    work = Work(tokens=7, pairs=11, scored=5)
    assert forward_flops(shape, work) == 2 * 100 * 7 + 4 * 3 * 8 * 11 + 2 * 50 * 5
    assert backward_flops(shape, work) == 2 * 110 * 7 + 8 * 3 * 8 * 11 + 2 * 50 * 5
    whole = ComputeShape(body=100, trained=100, head=50, head_is_trained=True, layers=3, attention=8)
    assert backward_flops(whole, work) == 2 * forward_flops(whole, work), "the usual 6 n against 2 n"


def test_a_prompt_counts_once_and_the_last_token_is_fed_to_nothing() -> None:
    # prompt positions 1..3 see 1, 2, 3 keys; a completion's first two tokens see 4 and 5
    assert scoring_work(3, [3]) == Work(tokens=5, pairs=6 + 9, scored=3)
    assert scoring_work(3, [3, 1]) == Work(tokens=5, pairs=6 + 9, scored=4)
    assert sampling_work(3, [3, 1]) == Work(tokens=5, pairs=6 + 9, scored=3), "one distribution of the first token"
    assert sampling_work(3, []) == Work(3, 6, 0)
    assert scoring_work(3, [3]) + scoring_work(3, [1]) - scoring_work(3, [3]) == scoring_work(3, [1])


@pytest.mark.parametrize("tied", [False, True])
def test_the_formula_is_what_torch_counts(tied: bool) -> None:
    """One prompt with one completion, through the model's own forward and backward passes."""
    model = tiny_llama(torch.float32, tie_word_embeddings=tied)
    model.set_attn_implementation("eager")  # torch counts no fused attention on the CPU
    shape = compute_shape(model)
    assert shape is not None
    prompt, completion = 5, 4
    ids = torch.arange(prompt + completion - 1).unsqueeze(0) + 10
    with FlopCounterMode(display=False) as forward:
        logits = model(ids, logits_to_keep=completion, use_cache=False).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    work = scoring_work(prompt, [completion])
    # written out, attention computes all pairs of the square, and rotary frequencies are a small product of their own
    square = Work(work.tokens, work.tokens**2, work.scored)
    assert forward.get_total_flops() == pytest.approx(forward_flops(shape, square), rel=1e-3)
    assert backward.get_total_flops() == pytest.approx(backward_flops(shape, square), rel=1e-3)


def test_frozen_weights_cost_no_gradient_of_their_own() -> None:
    model = tiny_llama(torch.float32)
    model.requires_grad_(False)
    assert compute_shape(model) is not None
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(True)
    shape = compute_shape(model)
    assert shape is not None
    assert (shape.trained, shape.head_is_trained) == (model.model.layers[0].mlp.up_proj.weight.numel(), False)
    embedding = model.get_input_embeddings().weight.numel()
    norms = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)
    assert shape.body + shape.head + embedding + norms == sum(parameter.numel() for parameter in model.parameters())


def test_experts_are_not_counted() -> None:
    model = tiny_llama(torch.float32)
    model.config.num_local_experts = 4
    assert compute_shape(model) is None

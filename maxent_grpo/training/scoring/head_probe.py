"""Whether a model's output head can be computed apart from the model, found out by trying.

Scoring then needs no logits of the model: it takes the hidden states that go into the head and makes a few rows of logits at a
time. A short sequence is run twice, once with hidden states made large, so that a bound on the logits shows; where the logits
that its configuration makes one expect differ from the model's own, these are used, and a note says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from maxent_grpo.models.output_head import head_input, output_head, possible_transforms, unwrapped
from maxent_grpo.objective.head_distribution import HeadTransform
from maxent_grpo.training.forward import evaluation_mode
from maxent_grpo.training.scoring.packing import ModelInputs
from maxent_grpo.training.scoring.policy import last_logits

TRIED, KEPT = 6, 4
"""Length of the sequence, and positions of it whose logits are compared [tokens]."""
LARGE = 50.0
"""Products of the output matrix to which hidden states are enlarged for the second run."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.03}
"""Difference of logits, as a share of the largest, that is rounding."""


def separate_head(model: nn.Module, note: Callable[[str], None]) -> HeadTransform | None:
    """What the model does to the products of its output matrix; None, and a note, where its own logits must be used."""
    found = head_problem_or_transform(model)
    if isinstance(found, HeadTransform):
        return found
    note(f"scoring takes all logits of a slice from the model at once: {found}")
    return None


def head_problem_or_transform(model: nn.Module) -> HeadTransform | str:
    """What the model does to the products of its output matrix, or why that is unknown."""
    model = unwrapped(model)
    head = output_head(model)
    if isinstance(head, str):
        return head
    name = type(model).__name__
    if getattr(model, "_compiled_call_impl", None) is not None:
        return f"{name} is compiled together with its head"
    if head.weight.dtype not in TOLERANCE:
        return f"its output head has weights of type {str(head.weight.dtype).removeprefix('torch.')}"
    try:
        with evaluation_mode(model), torch.no_grad():
            runs = [_own_logits(model, head, 1.0)]
            largest = float(runs[0][1].abs().max())
            runs.append(_own_logits(model, head, LARGE / max(largest, torch.finfo(torch.float32).tiny)))
            caught = _caught(model, head)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        return f"{name} does not run without its head ({first_line})"
    if not _close(caught, runs[0][1]):
        return f"the hidden states that go into the head of {name} depend on it"
    for transform in possible_transforms(model):
        if all(_close(transform.apply_(products.clone()), own) for own, products in runs):
            return transform
    return f"the logits of {name} are not those that its configuration makes one expect"


def _own_logits(model: nn.Module, head: nn.Linear, factor: float) -> tuple[Tensor, Tensor]:
    """The model's logits with its hidden states times ``factor``, and the products of the head's matrix with these."""
    seen: list[Tensor] = []

    def enlarge(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        seen.append(args[0] * factor)
        return (seen[-1],)

    handle = head.register_forward_pre_hook(enlarge)
    try:
        own = last_logits(model, _tried(model))
    finally:
        handle.remove()
    return own, linear(seen[0][:, -KEPT:], head.weight, head.bias)


def _caught(model: nn.Module, head: nn.Linear) -> Tensor:
    """The products with the hidden states that scoring would catch."""
    with head_input(head) as seen:
        last_logits(model, _tried(model))
    return linear(seen[0][:, -KEPT:], head.weight, head.bias)


def _close(one: Tensor, other: Tensor) -> bool:
    gap, size = (one.double() - other.double()).abs().max(), other.double().abs().max()
    return one.shape == other.shape and bool(gap <= TOLERANCE[other.dtype] * size)


def _tried(model: nn.Module) -> ModelInputs:
    """One short sequence."""
    vocab = cast(Any, model).get_input_embeddings().weight.shape[0]
    places = torch.arange(TRIED).unsqueeze(0)
    none = places[0, :0]
    return ModelInputs(
        input_ids=torch.linspace(0, vocab - 1, TRIED + 2)[1:-1].long().unsqueeze(0),
        attention_mask=torch.ones_like(places),
        position_ids=places,
        num_kept=KEPT,
        model_row=none,
        place=none,
        row=none,
        column=none,
        target_ids=none,
    ).to(next(model.parameters()).device)

"""A model's output head: its matrix, what the model does to the products, and the hidden states that go into it.

What the model does to the products is not part of the head's module, and its configuration says it under names that differ
from family to family; ``possible_transforms`` lists what they can mean, and who uses one compares it with the model first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from maxent_grpo.objective.head_distribution import HeadTransform

MULTIPLIERS = ("logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")
"""Settings that logits are multiplied by: of Cohere, Muse Glimmer, Falcon-H1 and HyperCLOVA X."""
DIVISORS = ("logits_scaling",)
"""Settings that logits are divided by: of Granite."""
SOFTCAPS = ("final_logit_softcapping",)
"""Settings that bound logits: of Gemma and nanochat."""


def output_head(model: nn.Module) -> nn.Linear | str:
    """The linear layer that makes logits, or why there is none that could be computed apart from the model."""
    find = getattr(unwrapped(model), "get_output_embeddings", None)
    head = None if find is None else find()
    if head is None:
        return f"{type(unwrapped(model)).__name__} names no output head"
    # adapters, quantised layers and sharded weights are classes of their own, whose product is not this weight's
    if type(head) is not nn.Linear:
        return f"its output head is a {type(head).__module__.partition('.')[0]}.{type(head).__name__}"
    if type(head.weight) is not nn.Parameter:
        return f"the weight of its output head is a {type(head.weight).__name__}"
    return head


def possible_transforms(model: nn.Module) -> list[HeadTransform]:
    """What the configuration can mean for the logits, the likeliest first; products left as they are come last.

    Granite divides by the setting that HyperCLOVA X multiplies by, and MiniCPM3 divides its hidden states before the head.
    """
    config = unwrapped(model).config
    text: Any = config.get_text_config() if hasattr(config, "get_text_config") else config
    softcap = next((float(value) for name in SOFTCAPS if (value := getattr(text, name, None))), None)
    scales = [1.0 / float(value) for name in DIVISORS if (value := getattr(text, name, None))]
    scales += [float(value) for name in MULTIPLIERS if (value := getattr(text, name, None)) is not None]
    found = [HeadTransform(scale, bound) for bound in (softcap, None) for scale in (*scales, 1.0)]
    return list(dict.fromkeys(found))


@contextmanager
def head_input(head: nn.Linear) -> Iterator[list[Tensor]]:
    """Catch what goes into the head inside the block, and let it compute no logits: it is given no positions."""
    caught: list[Tensor] = []

    def catch(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        caught.append(args[0])
        return (args[0][:, :0],)

    handle = head.register_forward_pre_hook(catch)
    try:
        yield caught
    finally:
        handle.remove()


def unwrapped(model: nn.Module) -> Any:
    """The model inside a data-parallel wrapper, or itself."""
    return getattr(model, "module", model)

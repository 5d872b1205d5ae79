"""Attention that looks back over a window only, under masks of one's own.

The library takes a ready mask for every pair of positions as it is, and applies no window to it. A model with windows is
therefore given masks that hold the window already, one for each kind of its layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """How the layers of a model look back: over everything, over a window, or some each."""

    window: int | None
    """Positions that a layer with a window sees, its own included; None where no layer has one."""
    by_name: bool
    """The model takes a mask for each kind of layer; otherwise one for all."""
    other: tuple[str, ...] = ()
    """Kinds that a mask cannot describe, such as recurrent layers."""


def layer_kinds(model: nn.Module) -> LayerKinds:
    """The kinds of a transformers model's layers, from its configuration."""
    config: Any = getattr(getattr(model, "module", model), "config", None)
    if config is None:
        return LayerKinds(None, by_name=False)
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if not kinds:
        return LayerKinds(window, by_name=False)
    slides = SLIDING in kinds
    return LayerKinds(window if slides else None, by_name=slides, other=tuple(sorted(kinds - {FULL, SLIDING})))


def windowed_masks(mask: Tensor, position_ids: Tensor, kinds: LayerKinds) -> Tensor | dict[str, Tensor]:
    """What to give a model instead of an additive ``mask`` [rows, 1, L, L] over positions [rows, L]."""
    if kinds.window is None:
        return mask
    distance = position_ids.unsqueeze(2) - position_ids.unsqueeze(1)
    windowed = mask.masked_fill((distance >= kinds.window).unsqueeze(1), torch.finfo(mask.dtype).min)
    return {FULL: mask, SLIDING: windowed} if kinds.by_name else windowed

"""Prompts run side by side without padding, whose keys and values are kept once for all of their completions.

For models whose attention takes layouts (``models.attention``). The prompts of a call are one row of tokens with restarting
positions, each attending to itself alone. A completion's token attends to its own keys and to those of its prompt, without a
mask over both: the two parts are softmaxes of their own, merged by their normalisers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from maxent_grpo.models.attention import takes_layouts
from maxent_grpo.training.forward import accepted
from maxent_grpo.training.generation.direct_pass import STEPS_TO_PACK, DirectPass, direct_pass
from maxent_grpo.training.generation.kv_cache import RoomyLayer, drop_rows
from maxent_grpo.training.generation.prompt_slots import PromptSlots, last

SHARED_BYTES = 2**19
"""Copies of the prompts' keys in a layer, from which on prompts are shared: below, copying and reading them is cheaper than the
few more operations that a merge takes."""
TRIED_PROMPTS, TRIED_TOKENS = (3, 3, 2), 2
"""Lengths of the prompts and of what follows each, when a model is tried."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Difference of logits that is rounding, as a part of the largest; 0.1 for narrower types."""


class _PromptLayout:
    """Attention of prompts that stand one behind the other: each is causal over itself."""

    def __init__(self, lengths: Sequence[int], cache: Cache) -> None:
        self._runs = [(length, len(list(same))) for length, same in groupby(lengths)]
        self._cache = cache
        self.num_layers = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None) -> Tensor:
        """Attention outputs [1, L, heads, D]; prompts of one length that follow each other are one batch."""
        if key is not getattr(self._cache.layers[self.num_layers], "keys", None):
            raise RuntimeError("attention does not see the keys that its layer put into the cache")
        self.num_layers += 1
        outputs: list[Tensor] = []
        start = 0
        for length, num in self._runs:
            q, k, v = (_prompts(states, start, length, num) for states in (query, key, value))
            mask = None if window is None or window >= length else _window_mask(length, window, query.device)
            output = scaled_dot_product_attention(
                q, k, v, mask, is_causal=mask is None, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
            )
            outputs.append(output.transpose(1, 2).reshape(1, num * length, *output.shape[1::2]))
            start += num * length
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


class LaidOutPrompts:
    """Keys and values of prompts, each once."""

    def __init__(
        self, layers: list[tuple[Tensor, Tensor]], lengths: Tensor, padding: Tensor | None, direct: DirectPass | None
    ) -> None:
        """Hold what the pass over the prompts left.

        Args:
            layers: keys and values of each layer [P, kv_heads, width, D], shorter prompts behind zeros.
            lengths: prompt tokens [P].
            padding: 0 at tokens and minus infinity before them; None when all prompts have one length [P, width].
            direct: makes the steps behind them; None leaves that to the model.
        """
        self._layers = layers
        self._lengths = lengths
        self._padding = padding
        self._direct = direct

    def continued(self, rows: Tensor, room: int) -> LaidOutCompletions:
        """Completions of up to ``room`` tokens, one for each entry of ``rows``, which names its prompt."""
        return self.shared(rows, room) if self._sharing_pays(rows.shape[0]) else self.copied(rows, room)

    def shared(self, rows: Tensor, room: int) -> LaidOutCompletions:
        """Completions that read their prompts where they are."""
        own = [RoomyLayer(keys[:, :, :0], values[:, :, :0], rows, room) for keys, values in self._layers]
        slots = PromptSlots(self._layers, self._padding, rows)
        return LaidOutCompletions(own, self._lengths.index_select(0, rows), direct=self._direct_for(room), slots=slots)

    def copied(self, rows: Tensor, room: int) -> LaidOutCompletions:
        """Completions with copies of their prompts."""
        own = [RoomyLayer(keys, values, rows, room) for keys, values in self._layers]
        padding = self._padding
        if padding is not None:
            padding = padding.index_select(0, rows)
            padding = torch.cat([padding, padding.new_zeros((rows.shape[0], room))], dim=1)
        return LaidOutCompletions(
            own, self._lengths.index_select(0, rows), direct=self._direct_for(room), padding=padding
        )

    def _direct_for(self, room: int) -> DirectPass | None:
        return None if self._direct is None else self._direct.of_steps(room)

    @property
    def shareable(self) -> bool:
        """Whether completions can read prompts where they are: the kernel that also returns its normaliser is the CPU's."""
        keys, values = self._layers[0]
        return keys.device.type == "cpu" and keys.shape[-1] == values.shape[-1]

    def _sharing_pays(self, num_rows: int) -> bool:
        keys, _ = self._layers[0]
        return self.shareable and sharing_pays(num_rows * keys[0].numel() * keys.itemsize)


class LaidOutCompletions:
    """Running completions behind prompts that are shared (``slots``) or copied; the layout of their attention."""

    def __init__(
        self,
        layers: list[RoomyLayer],
        lengths: Tensor,
        *,
        direct: DirectPass | None,
        slots: PromptSlots | None = None,
        padding: Tensor | None = None,
    ) -> None:
        self._own = layers
        self._direct = direct
        self._cache = Cache(layers=layers)  # pyright: ignore[reportArgumentType]  (a list of one kind)
        self._lengths = lengths
        self._slots = slots
        self._padding = padding
        self._no_mask = torch.zeros((1, 1, 1, 1), device=lengths.device)
        self._layer = 0

    def advance(self, model: PreTrainedModel, tokens: Tensor, step: int) -> Tensor:
        """Feed token ``step`` of each completion [rows]; returns the logits of token ``step + 1`` [rows, V]."""
        self._layer = 0
        if self._direct is not None:
            return self._direct(tokens, self._lengths + step, self._own, self.attend)
        outputs = model(
            input_ids=tokens.unsqueeze(1),
            # four axes are handed through as they are, so that no mask is built
            attention_mask=self._no_mask,
            position_ids=(self._lengths + step).unsqueeze(1),
            past_key_values=self._cache,
            use_cache=True,
            layout=self,
            **accepted(model, {"logits_to_keep": 1}),
        )
        return outputs.logits[:, -1]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None) -> Tensor:
        """Attention outputs [rows, 1, heads, D] of one token in each row, over its own keys [rows, kv_heads, K, D] and its prompt's."""
        layer, self._layer = self._layer, self._layer + 1
        rows, heads, _, _ = query.shape
        grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], -1)
        num_own = key.shape[2]
        own_key, own_value = last(key, window), last(value, window)
        if self._slots is None:
            mask = None if self._padding is None else last(self._padding[:, None, None, :num_own], window, dim=3)
            output = scaled_dot_product_attention(grouped, own_key, own_value, mask, scale=scaling)
        else:
            output = self._slots.merged(
                grouped, own_key, own_value, layer, scaling=scaling, seen=None if window is None else window - num_own
            )
        return output.reshape(rows, 1, heads, -1)

    def drop(self, dropped: Tensor) -> Tensor:
        """Drop the completions that are marked; returns the old rows of those that are left, which change their order."""
        kept = drop_rows(self._cache, dropped)
        self._lengths = self._lengths[kept]
        if self._padding is not None:
            self._padding = self._padding[kept]
        if self._slots is not None:
            self._slots.keep(kept)
        return kept


def run_prompts(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, LaidOutPrompts]:
    """Run prompts as one row without padding; returns the logits behind each [P, V], and their keys and values.

    Raises:
        RuntimeError: the model does not hand the layout to all of its layers.
    """
    sizes = [len(prompt) for prompt in prompts]
    lengths = torch.tensor(sizes, device=device)
    ends = lengths.cumsum(dim=0) - 1
    cache = DynamicCache()  # without a configuration: of layers with a window, too, all keys are wanted
    layout = _PromptLayout(sizes, cache)
    positions = torch.cat([torch.arange(size, device=device) for size in sizes])
    outputs = model(
        input_ids=torch.tensor([[token for prompt in prompts for token in prompt]], device=device),
        attention_mask=torch.zeros((1, 1, 1, 1), device=device),
        position_ids=positions.unsqueeze(0),
        past_key_values=cache,
        use_cache=True,
        layout=layout,
        **accepted(model, {"logits_to_keep": ends}),
    )
    if layout.num_layers == 0 or layout.num_layers != len(cache.layers):
        raise RuntimeError(f"{layout.num_layers} of {len(cache.layers)} layers take a layout")
    logits = outputs.logits[0] if outputs.logits.shape[1] == len(prompts) else outputs.logits[0, ends]
    filled = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
    layers = [(_by_prompt(layer.keys, sizes), _by_prompt(layer.values, sizes)) for layer in filled]
    width = max(sizes)
    padding = None
    if min(sizes) < width:
        missing = torch.arange(width, device=device) < width - lengths.unsqueeze(1)
        padding = layers[0][0].new_zeros(missing.shape).masked_fill_(missing, -torch.inf)
    return logits, LaidOutPrompts(layers, lengths, padding, direct_pass(model))


def layout_problem(model: PreTrainedModel, token_ids: Sequence[int]) -> str:
    """Why prompts and completions of this model cannot be laid out here; empty when they can.

    Found out by trying: three short prompts and two tokens behind them, made of ``token_ids``, give the logits of plain passes
    over whole sequences, with prompts shared and with copies. The model must be in evaluation mode.
    """
    if not takes_layouts(model):
        return "its attention takes no layouts; that of attention=sdpa does"
    kinds = {type(layer) for layer in DynamicCache(config=model.config).layers}
    if not kinds or not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        return f"its cache has layers of kind {', '.join(sorted(kind.__name__ for kind in kinds))}"
    if not accepted(model, {"position_ids": None}):
        return "it takes no positions"
    tokens = [token_ids[place % len(token_ids)] for place in range(sum(TRIED_PROMPTS) + TRIED_TOKENS)]
    try:
        with torch.no_grad():
            expected, found = _tried(model, tokens)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        return f"it refuses them: {type(error).__name__}: {error}"
    if not bool(torch.isfinite(expected).all()):
        return ""  # broken weights tell nothing about layouts, and sampling says what they are
    gap = float((found - expected).abs().max())
    if gap > TOLERANCE.get(expected.dtype, 0.1) * float(expected.abs().max()):
        return f"they give other logits (by {gap:.2g})"
    return ""


def sharing_pays(copied: int) -> bool:
    """Whether completions read their prompts where they are, if copies of a layer's keys would take ``copied`` bytes."""
    return copied >= SHARED_BYTES


def _tried(model: PreTrainedModel, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Logits behind three prompts with two tokens each, by plain passes and laid out in both ways [2, 2 * 3, V]."""
    device = next(model.parameters()).device
    prompts = [tokens[sum(TRIED_PROMPTS[:place]) :][:size] for place, size in enumerate(TRIED_PROMPTS)]
    fed = tokens[-TRIED_TOKENS:]
    expected = [
        model(input_ids=torch.tensor([prompt + fed[:num]], device=device), use_cache=False).logits[0, -1]
        for num in (0, TRIED_TOKENS)
        for prompt in prompts
    ]
    rows = torch.arange(len(prompts), device=device)
    logits, states = run_prompts(model, prompts, device)
    found: list[Tensor] = []
    for completions_of in [states.copied, states.shared][: 1 + states.shareable]:
        completions, behind = completions_of(rows, STEPS_TO_PACK), logits
        for step, token in enumerate(fed):
            behind = completions.advance(model, torch.full_like(rows, token), step)
        found.append(torch.cat([logits, behind]))
    both = torch.stack(found)
    return torch.stack(expected).expand_as(both), both


def _prompts(states: Tensor, start: int, length: int, num: int) -> Tensor:
    """``num`` prompts of ``length`` tokens from position ``start`` on, of [1, heads, L, D]; a view [num, heads, length, D]."""
    return states[0, :, start : start + num * length].unflatten(1, (num, length)).transpose(0, 1)


def _by_prompt(states: Tensor | None, sizes: Sequence[int]) -> Tensor:
    """States of prompts in one row [1, heads, L, D], as rows that end at one place, behind zeros [P, heads, width, D]."""
    assert states is not None
    if min(sizes) == max(sizes):
        return _prompts(states, 0, sizes[0], len(sizes))
    rows = states.new_zeros((len(sizes), states.shape[1], max(sizes), states.shape[3]))
    for row, prompt in zip(rows, states[0].split(list(sizes), dim=1), strict=True):
        row[:, row.shape[1] - prompt.shape[1] :] = prompt
    return rows


def _window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """Which keys each query of a prompt sees: itself and the ``window - 1`` before it."""
    seen = torch.ones((length, length), dtype=torch.bool, device=device).tril()
    return seen.triu(1 - window)

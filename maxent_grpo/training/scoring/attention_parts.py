"""Attention of one row of tokens in parts, each some queries over some keys in one kernel call, and how parts are cut.

A token that two parts hold, a completion's over its prompt and over its own completion, gets from each an output o_i and the
log-sum-exp l_i of its scores. Its attention over both is

    l = log(exp(l_1) + exp(l_2)),   o = exp(l_1 - l) o_1 + exp(l_2 - l) o_2,

and a part's gradients are those of its own kernel when that is given o and l instead of o_i and l_i: the kernel makes its
probabilities from the log-sum-exp, and needs of the output its product with the gradient. This is exact, and no key is copied for
the completions that share it (the identity behind FlashAttention: Dao et al. 2022, section 3.1 and appendix B).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

CALL = 2048
"""A kernel call costs as much as about so many scores of one query and one key; padding that costs less is taken instead."""
ALONE = 64 * CALL
"""A part of so many scores gains nothing from company, and alone it is read where it stands instead of being gathered."""
KEPT_MASK = 2**20
"""Masks of so many numbers are kept for the next layer; larger ones are made anew, for less than their attention costs."""
WHOLE = 128
"""A prompt with its completions of so many tokens is one part under a mask: its runs are too short to pay for three [tokens]."""
_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_KERNEL_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Part(NamedTuple):
    """``rows`` runs of ``queries`` tokens, each over ``keys`` tokens before it, or causally over itself where that is 0.

    A run is a prompt, a completion, all completions of a prompt (these with keys), or a short prompt with all of them. A single
    row is read where it stands. Several are gathered: queries padded on the right with their last token, keys on the left with
    their first.
    """

    rows: int
    queries: int
    keys: int
    first_query: int
    first_key: int
    reach: int
    """Positions from the last query back to the first key, both included: a window of so many hides nothing."""
    places: Tensor | None = None
    """[rows * queries] tokens of the queries, of several rows."""
    real: Tensor | None = None
    """Queries among these that are no padding; None where none is."""
    padding: Tensor | None = None
    """Those that are."""
    key_places: Tensor | None = None
    """[rows * keys] tokens of the keys, of several rows."""
    missing: Tensor | None = None
    """[rows] keys that each row is padded with; None where there are none."""
    positions: Tensor | None = None
    """[rows, queries] of parts with keys the number of a query in its completion, of whole prompts its position; else None."""
    segments: Tensor | None = None
    """[rows, queries] 0 in the prompt, the number of its completion from 1 on in these; of whole prompts only."""

    @property
    def is_causal(self) -> bool:
        """Whether the kernel may tell by itself what is hidden, where no window hides more."""
        return self.keys == 0 and self.segments is None


class Runs(NamedTuple):
    """Where some runs of tokens begin in the row, and how long they are [n]."""

    first: Tensor
    size: Tensor

    def pick(self, chosen: list[int]) -> Runs:
        """Some of them."""
        return Runs(self.first[chosen], self.size[chosen])


class Places(NamedTuple):
    """What each token of the row is [L]."""

    position: Tensor
    """Its position in prompt and completion together."""
    number: Tensor
    """Its number in its completion, from 0 on; 0 in prompts."""
    segment: Tensor
    """0 in prompts, the number of its completion among those of the prompt from 1 on."""


def cut_parts(prompts: Runs, behind: Runs, completions: Runs, group: Tensor, like: Places) -> tuple[Tensor, Tensor]:
    """The parts of a row as ``RowParts`` reads them: numbers [parts, 10], which stay on the CPU, and places.

    Parts of a token's own run come before those over its prompt.

    Args:
        prompts: every prompt.
        behind: all the completions of each prompt as one run.
        completions: every completion.
        group: prompt of each completion.
        like: what each token is.
    """
    whole = prompts.size + behind.size <= WHOLE
    packs = Runs(prompts.first, (prompts.size + behind.size) * whole)
    alone = Runs(prompts.first, prompts.size * ~whole)
    behind = Runs(behind.first, behind.size * ~whole)
    own = Runs(completions.first, completions.size * ~whole[group])
    made = [_causal(runs.pick(chosen), None) for runs in (alone, own) for chosen in _together(runs.size, runs.size)]
    made += [_causal(packs.pick(chosen), like) for chosen in _together(packs.size, packs.size)]
    made += [_crossing(behind.pick(chosen), alone.pick(chosen), like) for chosen in _together(behind.size, alone.size)]
    begins = torch.tensor([0, *(len(places) for _, places in made)]).cumsum(0)[:-1].tolist()
    numbers = [[*part, at] for (part, _), at in zip(made, begins, strict=True)]
    return torch.tensor(numbers), torch.cat([places for _, places in made])


def _together(queries: Tensor, keys: Tensor) -> list[list[int]]:
    """Which runs share a call: those whose padding to one size costs less than the calls it saves. Empty ones are left out."""
    sizes = list(zip(queries.tolist(), keys.tolist(), strict=True))
    parts: list[list[int]] = []
    wide = long = scores = 0
    for number in sorted(range(len(sizes)), key=lambda n: (sizes[n][1], sizes[n][0]), reverse=True):
        size = sizes[number][0] * sizes[number][1]
        if size == 0:
            continue
        wider, longer = max(wide, sizes[number][0]), max(long, sizes[number][1])
        saved = len(parts[-1]) if parts else 0
        if saved and size < ALONE and (saved + 1) * wider * longer - scores - size <= saved * CALL:
            parts[-1].append(number)
            wide, long, scores = wider, longer, scores + size
        else:
            parts.append([number])
            (wide, long), scores = sizes[number], size
    return [sorted(part) for part in parts]


def _causal(runs: Runs, whole: Places | None) -> tuple[list[int], Tensor]:
    rows, width = len(runs.size), int(runs.size.max())
    places, real = _right_padded(runs)
    numbers = [rows, width, 0, int(runs.first[0]), 0, width, int(real.sum()), 0, int(whole is not None)]
    known = [places.flatten(), *_split(real)] if rows > 1 else []
    if whole is not None:
        known += [whole.position[places].flatten(), whole.segment[places].flatten()]
    return numbers, torch.cat([places[0, :0], *known])


def _crossing(runs: Runs, keys: Runs, like: Places) -> tuple[list[int], Tensor]:
    rows, width, num_keys = len(runs.size), int(runs.size.max()), int(keys.size.max())
    places, real = _right_padded(runs)
    number = like.number[places].flatten()
    missing = num_keys - keys.size
    reach = int(number.max()) + 1 + num_keys
    numbers = [rows, width, num_keys, int(runs.first[0]), int(keys.first[0]), reach, int(real.sum())]
    numbers += [int(missing.sum()), 0]
    if rows == 1:
        return numbers, number
    key_places = keys.first.unsqueeze(1) + (torch.arange(num_keys) - missing.unsqueeze(1)).clamp(min=0)
    return numbers, torch.cat([places.flatten(), *_split(real), key_places.flatten(), missing, number])


def _right_padded(runs: Runs) -> tuple[Tensor, Tensor]:
    """Places [rows, longest], a run's last one again behind its end, and which are real."""
    columns, sizes = torch.arange(int(runs.size.max())), runs.size.unsqueeze(1)
    return runs.first.unsqueeze(1) + torch.minimum(columns, sizes - 1), columns < sizes


def _split(real: Tensor) -> tuple[Tensor, Tensor]:
    return real.flatten().nonzero()[:, 0], (~real).flatten().nonzero()[:, 0]


class RowParts:
    """The parts of a row that ``cut_parts`` wrote down, ready for every layer."""

    def __init__(self, numbers: Tensor, index: Tensor) -> None:
        self.parts = [_read_part(row, index) for row in numbers.tolist()]
        self._masks: dict[tuple[int, int | None, torch.dtype], Tensor] = {}

    def seen(self, window: int | None, dtype: torch.dtype) -> Iterator[tuple[Part, Tensor | None]]:
        """The parts through a window, with the additive masks that they need."""
        for number, whole in enumerate(self.parts):
            part, key = _narrowed(whole, window), (number, window, dtype)
            if part is None:
                continue
            mask = self._masks.get(key)
            if mask is None:
                mask = _mask(part, window, dtype)
            if mask is not None and mask.numel() <= KEPT_MASK:
                self._masks[key] = mask
            yield part, mask


def _read_part(row: list[int], index: Tensor) -> Part:
    rows, queries, keys, first_query, first_key, reach, num_real, num_missing, is_whole, at = row
    part, num = Part(rows, queries, keys, first_query, first_key, reach), rows * queries
    is_gathered, crosses = rows > 1, keys > 0
    sizes = [num, num_real, num - num_real] if is_gathered else [0, 0, 0]
    sizes += [rows * keys, rows] if is_gathered and crosses else [0, 0]
    sizes += [num if crosses or is_whole else 0, num if is_whole else 0]
    pieces = index[at : at + sum(sizes)].split(sizes)
    if is_gathered:
        part = part._replace(places=pieces[0], key_places=pieces[3])
    if is_gathered and num_real < num:
        part = part._replace(real=pieces[1], padding=pieces[2])
    if num_missing:
        part = part._replace(missing=pieces[4])
    if crosses or is_whole:
        part = part._replace(positions=pieces[5].view(rows, queries))
    return part._replace(segments=pieces[6].view(rows, queries)) if is_whole else part


def parts_forward(
    query: Tensor, key: Tensor, value: Tensor, parts: RowParts, scaling: float | None, window: int | None
) -> tuple[Tensor, Tensor]:
    """Outputs [L, heads, D] and log-sum-exps [L, heads, 1] of queries [L, heads, D], keys and values [L, kv_heads, D]."""
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    lse = torch.empty((*query.shape[:2], 1), dtype=wide, device=query.device)
    for part, mask in parts.seen(window, query.dtype):
        found, weight = _KERNEL(
            _queries(query, part), _keys(key, part), _keys(value, part), 0.0, mask is None and part.is_causal,
            attn_mask=mask, scale=scaling,
        )  # fmt: skip
        weight = weight.unsqueeze(-1)
        if part.keys:
            before = _queries(lse, part)
            total = torch.logaddexp(weight, before)
            found = found * (weight - total).exp_() + _queries(out, part) * (before - total).exp_()
            weight = total
        _put(out, part, found.to(out.dtype))
        _put(lse, part, weight)
    return out, lse


def parts_backward(
    grad: Tensor,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    parts: RowParts,
    scaling: float | None,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values from that of the outputs [L, heads, D].

    ``saved``: queries, keys, values, outputs and log-sum-exps of ``parts_forward``.
    """
    query, key, value, out, lse = saved
    for_query, for_key, for_value = (
        torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (query, key, value)
    )
    for part, mask in parts.seen(window, query.dtype):
        found = _KERNEL_BACKWARD(
            _queries(grad, part, blank=True), _queries(query, part), _keys(key, part), _keys(value, part),
            _queries(out, part), _queries(lse, part).squeeze(-1), 0.0, mask is None and part.is_causal,
            attn_mask=mask, scale=scaling,
        )  # fmt: skip
        if part.keys:
            _put(for_query, part, found[0], add=True)
            _add_keys(for_key, part, found[1])
            _add_keys(for_value, part, found[2])
        else:
            for into, new in zip((for_query, for_key, for_value), found, strict=True):
                _put(into, part, new)
    return for_query, for_key, for_value


def _narrowed(part: Part, window: int | None) -> Part | None:
    """The part without the keys that no query sees through the window; None where none is left."""
    if window is None or part.keys < window:
        return part
    cut = part.keys - (window - 1)  # a completion's first token looks back on window - 1 of its prompt
    if cut == part.keys:
        return None
    rows = part.rows
    part = part._replace(keys=part.keys - cut, first_key=part.first_key + cut, reach=part.reach - cut)
    if part.key_places is not None:
        part = part._replace(key_places=part.key_places.view(rows, -1)[:, cut:].flatten())
    return part if part.missing is None else part._replace(missing=(part.missing - cut).clamp(min=0))


def _mask(part: Part, window: int | None, dtype: torch.dtype) -> Tensor | None:
    """Additive mask [rows, 1, queries, keys] where something is hidden: by the lowest number, so that a token may see no key."""
    visible = [] if part.segments is None else [_same_or_prompt(part.segments)]
    if window is not None and part.reach > window:
        visible.append(_within(part, window))
    if part.missing is not None:
        known = torch.arange(part.keys, device=part.missing.device) >= part.missing.unsqueeze(1)
        visible.append(known.unsqueeze(1).expand(-1, part.queries, -1))
    if not visible:
        return None
    hidden = ~torch.stack(visible).all(dim=0).unsqueeze(1)
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min)


def _same_or_prompt(segments: Tensor) -> Tensor:
    """[rows, n, n] causal, within the prompt and within one's own completion behind it."""
    query, key = segments.unsqueeze(2), segments.unsqueeze(1)
    return ((key == query) | (key == 0)).tril()


def _within(part: Part, window: int) -> Tensor:
    """[rows, queries, keys] less than a window before the query, and not behind it."""
    device = None if part.positions is None else part.positions.device
    columns = torch.arange(part.keys or part.queries, device=device)
    if part.keys:
        assert part.positions is not None
        distance = part.positions.unsqueeze(2) + (part.keys - columns)
    else:
        at = columns.expand(part.rows, -1) if part.positions is None else part.positions
        distance = at.unsqueeze(2) - at.unsqueeze(1)
        if part.positions is None:
            return (distance >= 0) & (distance < window)
    return distance < window


def _queries(values: Tensor, part: Part, *, blank: bool = False) -> Tensor:
    """What a part's queries have of ``values`` [L, n, D], as [rows, n, queries, D]; padding has 0 where ``blank``."""
    if part.places is None:
        return values[part.first_query : part.first_query + part.queries].transpose(0, 1).unsqueeze(0)
    taken = values.index_select(0, part.places)
    if blank and part.padding is not None:
        taken.index_fill_(0, part.padding, 0.0)  # a query without gradient gives its keys none
    return taken.unflatten(0, (part.rows, part.queries)).transpose(1, 2)


def _keys(values: Tensor, part: Part) -> Tensor:
    """What a part's keys have of ``values`` [L, n, D], as [rows, n, keys, D]."""
    if part.keys == 0:
        return _queries(values, part)
    if part.places is None:
        return values[part.first_key : part.first_key + part.keys].transpose(0, 1).unsqueeze(0)
    assert part.key_places is not None
    return values.index_select(0, part.key_places).unflatten(0, (part.rows, part.keys)).transpose(1, 2)


def _put(into: Tensor, part: Part, values: Tensor, *, add: bool = False) -> None:
    """Write [rows, n, queries, D] to the places of the queries, or add it there."""
    values, places = values.transpose(1, 2).flatten(0, 1), part.places
    if places is None:
        there = into[part.first_query : part.first_query + part.queries]
        (there.add_ if add else there.copy_)(values)
        return
    if part.real is not None:
        values, places = values.index_select(0, part.real), places.index_select(0, part.real)
    into.index_copy_(0, places, into.index_select(0, places).add_(values) if add else values)


def _add_keys(into: Tensor, part: Part, values: Tensor) -> None:
    """Add [rows, n, keys, D] to the places of the keys; padding has a gradient of 0."""
    values = values.transpose(1, 2)
    if part.key_places is None:
        into[part.first_key : part.first_key + part.keys].add_(values[0])
        return
    into.index_add_(0, part.key_places, values.flatten(0, 1))

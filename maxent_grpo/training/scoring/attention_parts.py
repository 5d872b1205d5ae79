"""Attention of one row of tokens in parts, each some queries over some keys in one kernel call, and how parts are cut.

A token that two parts hold, a completion's over its prompt and over its own completion, gets from each an output o_i and the
log-sum-exp l_i of its scores. Its attention over both is

    l = log(exp(l_1) + exp(l_2)),   o = exp(l_1 - l) o_1 + exp(l_2 - l) o_2,

and a part's gradients are those of its own kernel when that is given o and l instead of o_i and l_i: the kernel makes its
probabilities from the log-sum-exp, and needs of the output its product with the gradient. This is exact, and no key is copied for
the completions that share it (the identity behind FlashAttention: Dao et al. 2022, section 3.1 and appendix B).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CALL = 2048
"""A kernel call costs as much as about so many scores of one query and one key; padding that costs less is taken instead."""
ALONE = 64 * CALL
"""A part of so many scores gains nothing from company, and alone it is read where it stands instead of being gathered."""
_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_KERNEL_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Part(NamedTuple):
    """``rows`` runs of ``queries`` tokens, each over ``keys`` tokens before it, or causally over itself where that is 0.

    A single row is read where it stands. Several are gathered: queries padded on the right with their last token, keys on the
    left with their first.
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
    offsets: Tensor | None = None
    """[rows, queries] tokens between the last key and each query, of parts with keys."""


class Runs(NamedTuple):
    """Where some runs of tokens begin in the row, and how long they are [n]."""

    first: Tensor
    size: Tensor

    def pick(self, chosen: list[int]) -> Runs:
        """Some of them."""
        return Runs(self.first[chosen], self.size[chosen])


def cut_parts(prompts: Runs, behind: Runs, completions: Runs, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The parts of a row as ``read_parts`` reads them: numbers [parts, 9], which stay on the CPU, and places.

    Parts of one token's own run come before those over its prompt.

    Args:
        prompts: every prompt.
        behind: all the completions of each prompt as one run.
        completions: every completion.
        offsets: [L] the number of each completion's token in its completion, from 0 on.
    """
    made = [_causal(runs.pick(chosen)) for runs in (prompts, completions) for chosen in _together(runs.size, runs.size)]
    made += [
        _crossing(behind.pick(chosen), prompts.pick(chosen), offsets) for chosen in _together(behind.size, prompts.size)
    ]
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


def _causal(runs: Runs) -> tuple[list[int], Tensor]:
    rows, width = len(runs.size), int(runs.size.max())
    numbers = [rows, width, 0, int(runs.first[0]), 0, width]
    if rows == 1:
        return [*numbers, width, 0], torch.empty(0, dtype=torch.long)
    places, real = _right_padded(runs)
    return [*numbers, int(real.sum()), 0], torch.cat([places.flatten(), *_split(real)])


def _crossing(runs: Runs, keys: Runs, offsets: Tensor) -> tuple[list[int], Tensor]:
    rows, width, num_keys = len(runs.size), int(runs.size.max()), int(keys.size.max())
    places, real = _right_padded(runs)
    offset = offsets[places].flatten()
    missing = num_keys - keys.size
    reach = int(offset.max()) + 1 + num_keys
    numbers = [rows, width, num_keys, int(runs.first[0]), int(keys.first[0]), reach, int(real.sum()), int(missing.sum())]
    if rows == 1:
        return numbers, offset
    key_places = keys.first.unsqueeze(1) + (torch.arange(num_keys) - missing.unsqueeze(1)).clamp(min=0)
    return numbers, torch.cat([places.flatten(), *_split(real), key_places.flatten(), missing, offset])


def _right_padded(runs: Runs) -> tuple[Tensor, Tensor]:
    """Places [rows, longest], a run's last one again behind its end, and which are real."""
    columns, sizes = torch.arange(int(runs.size.max())), runs.size.unsqueeze(1)
    return runs.first.unsqueeze(1) + torch.minimum(columns, sizes - 1), columns < sizes


def _split(real: Tensor) -> tuple[Tensor, Tensor]:
    return real.flatten().nonzero()[:, 0], (~real).flatten().nonzero()[:, 0]


def read_parts(numbers: Tensor, index: Tensor) -> list[Part]:
    """The parts that ``cut_parts`` wrote down."""
    return [_read_part(row, index) for row in numbers.tolist()]


def _read_part(row: list[int], index: Tensor) -> Part:
    rows, queries, keys, first_query, first_key, reach, num_real, num_missing, at = row
    part, num = Part(rows, queries, keys, first_query, first_key, reach), rows * queries
    is_gathered, crosses = rows > 1, keys > 0
    sizes = [num, num_real, num - num_real] if is_gathered else [0, 0, 0]
    sizes += [rows * keys, rows] if is_gathered and crosses else [0, 0]
    sizes.append(num if crosses else 0)
    places, real, padding, key_places, missing, offsets = index[at : at + sum(sizes)].split(sizes)
    if is_gathered:
        part = part._replace(places=places, key_places=key_places)
    if is_gathered and num_real < num:
        part = part._replace(real=real, padding=padding)
    if num_missing:
        part = part._replace(missing=missing)
    return part._replace(offsets=offsets.view(rows, queries)) if crosses else part


def parts_forward(
    query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scaling: float | None, window: int | None
) -> tuple[Tensor, Tensor]:
    """Outputs [L, heads, D] and log-sum-exps [L, heads, 1] of queries [L, heads, D], keys and values [L, kv_heads, D]."""
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    lse = torch.empty((*query.shape[:2], 1), dtype=wide, device=query.device)
    for whole in parts:
        part = _narrowed(whole, window)
        if part is None:
            continue
        mask = _mask(part, window, query)
        found, weight = _KERNEL(
            _queries(query, part), _keys(key, part), _keys(value, part), 0.0, part.keys == 0 and mask is None,
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
    parts: Sequence[Part],
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
    for whole in parts:
        part = _narrowed(whole, window)
        if part is None:
            continue
        mask = _mask(part, window, query)
        found = _KERNEL_BACKWARD(
            _queries(grad, part, blank=True), _queries(query, part), _keys(key, part), _keys(value, part),
            _queries(out, part), _queries(lse, part).squeeze(-1), 0.0, part.keys == 0 and mask is None,
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


def _mask(part: Part, window: int | None, like: Tensor) -> Tensor | None:
    """Additive mask over (queries, keys) where something is hidden: by the lowest number, so that a token may see no key."""
    columns = torch.arange(part.keys or part.queries, device=like.device)
    visible = None
    if window is not None and part.reach > window:
        if part.offsets is None:
            distance = columns.unsqueeze(1) - columns
            visible = ((distance >= 0) & (distance < window)).expand(part.rows, 1, -1, -1)
        else:
            distance = part.offsets.unsqueeze(2) + (part.keys - columns)
            visible = (distance < window).unsqueeze(1)
    if part.missing is not None:
        known = (columns >= part.missing.unsqueeze(1)).view(part.rows, 1, 1, -1)
        visible = known.expand(-1, -1, part.queries, -1) if visible is None else visible & known
    if visible is None:
        return None
    mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~visible, torch.finfo(like.dtype).min)


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

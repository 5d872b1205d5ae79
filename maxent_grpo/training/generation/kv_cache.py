"""Key-value caches of prompts, expanded to the completions of each prompt, grown and shrunk without copying them each time."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, LinearAttentionCacheLayerMixin

AnyLayer = CacheLayerMixin | LinearAttentionCacheLayerMixin

ROOM_TOKENS = 64
"""Tokens that storage is reserved for at a time: copying the cache this seldom costs nothing beside the model."""


class RoomyLayer(DynamicLayer):
    """A full-attention cache layer with room behind its tokens.

    The layer of transformers copies the whole cache for every token it appends and for every row it drops, which costs
    more than the rest of a decoding step of a small model. This one appends in place, and fills the gaps of dropped rows
    with rows from the end. ``keys`` and ``values`` are views of the part in use.
    """

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, room: int) -> None:
        """Row n holds row ``rows[n]`` of ``keys`` and ``values`` [rows, heads, tokens, size], soon with ``room`` tokens more."""
        super().__init__()
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        # the prompts get their room before they are multiplied: one pass over the large result instead of two
        room = min(room, ROOM_TOKENS)
        self._key_storage = _with_room(keys, room).index_select(0, rows)
        self._value_storage = _with_room(values, room).index_select(0, rows)
        self._view(keys.shape[-2])

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens; returns all keys and values."""
        start, new = self._used, key_states.shape[-2]
        if start + new > self._key_storage.shape[-2]:
            self._key_storage = _with_room(self._key_storage.narrow(2, 0, start), new + ROOM_TOKENS)
            self._value_storage = _with_room(self._value_storage.narrow(2, 0, start), new + ROOM_TOKENS)
        self._key_storage.narrow(2, start, new).copy_(key_states)
        self._value_storage.narrow(2, start, new).copy_(value_states)
        return self._view(start + new)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make row n what row ``beam_idx[n]`` was."""
        self._key_storage = self._key_storage.index_select(0, beam_idx)
        self._value_storage = self._value_storage.index_select(0, beam_idx)
        self._view(self._used)

    def move_rows(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """Write rows ``sources`` over rows ``targets``, disjoint from them, then keep the first ``num_rows`` rows."""
        for storage in (self._key_storage, self._value_storage):
            storage[targets] = storage[sources]
        self._key_storage = self._key_storage[:num_rows]
        self._value_storage = self._value_storage[:num_rows]
        self._view(self._used)

    def _view(self, used: int) -> tuple[Tensor, Tensor]:
        """Let keys and values be the first ``used`` tokens of the storage."""
        self._used = used
        keys, values = self._key_storage.narrow(2, 0, used), self._value_storage.narrow(2, 0, used)
        self.keys, self.values = keys, values
        return keys, values


def expanded_cache(cache: Cache, rows: Tensor, room: int) -> Cache:
    """A new cache whose row n is row ``rows[n]`` of ``cache``, soon to take ``room`` more tokens; ``cache`` stays as it is.

    Layers of other kinds than plain full attention (sliding windows, recurrent states) are copied and keep their own way
    of growing.
    """
    expanded = copy.copy(cache)
    expanded.layers = [_expanded_layer(layer, rows, room) for layer in cache.layers]
    return expanded


def drop_rows(cache: Cache, dropped: Tensor) -> Tensor:
    """Remove the rows that the boolean ``dropped`` marks, in place; returns the old place of each row that is left.

    The rows left change their order: those behind the new end move into the gaps before it.
    """
    num_rows = int((~dropped).sum())
    order = torch.arange(num_rows, device=dropped.device)
    targets = dropped[:num_rows].nonzero().squeeze(1)
    sources = (~dropped[num_rows:]).nonzero().squeeze(1) + num_rows
    order[targets] = sources
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.move_rows(sources, targets, num_rows)
        else:
            layer.reorder_cache(order)  # pyright: ignore[reportArgumentType]  (the class of integer tensors is nominal)
    return order


def _expanded_layer(layer: AnyLayer, rows: Tensor, room: int) -> AnyLayer:
    # subclasses of the plain layer keep further states, so the type must be exactly this one
    if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
        return RoomyLayer(layer.keys, layer.values, rows, room)
    # recurrent states live in lists that reordering writes to, so a shallow copy would change the prompt's own cache
    other = copy.deepcopy(layer)
    other.reorder_cache(rows)  # pyright: ignore[reportArgumentType]
    return other


def _with_room(states: Tensor, room: int) -> Tensor:
    """A copy of ``states`` [rows, heads, tokens, size] with storage for ``room`` more tokens behind."""
    rows, heads, used, size = states.shape
    storage = states.new_empty((rows, heads, used + room, size))
    storage.narrow(2, 0, used).copy_(states)
    return storage

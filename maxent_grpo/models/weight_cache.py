"""Weights on disk under a content key: written whole or not at all, and checked before they are believed."""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """Outcome of a read. ``final_loss`` is None unless the weights were loaded; ``corrupted``: a file was there but wrong."""

    final_loss: float | None
    corrupted: bool


def state_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors, independent of their order."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_weights(path: Path, model: PreTrainedModel, final_loss: float) -> None:
    """Store the model's weights at ``path`` in one atomic step; of several writers at once the last one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    metadata = {"sha256": _checksum(state, repr(final_loss)), "final_loss": repr(final_loss)}
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        save_file(state, temporary, metadata=metadata)
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_weights(path: Path, model: PreTrainedModel) -> CachedWeights:
    """Load ``path`` into ``model`` if it is there and its checksum and shapes hold; a bad file is logged and left unread."""
    if not path.exists():
        return CachedWeights(None, corrupted=False)
    try:
        state, final_loss = _read_checked(path)
    except (SafetensorError, ValueError, OSError) as error:
        logger.warning("cached weights %s cannot be trusted (%s); they are trained anew", path, error)
        return CachedWeights(None, corrupted=True)
    expected = {name: (tensor.shape, tensor.dtype) for name, tensor in model.state_dict().items()}
    if {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()} != expected:
        logger.warning("cached weights %s do not fit the model; they are trained anew", path)
        return CachedWeights(None, corrupted=True)
    model.load_state_dict(state)
    return CachedWeights(final_loss, corrupted=False)


def _read_checked(path: Path) -> tuple[dict[str, Tensor], float]:
    """The tensors and the stored loss; ValueError when the file is not what was written."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the handle is no mapping
    final_loss = metadata.get("final_loss", "")
    if metadata.get("sha256") != _checksum(state, final_loss):
        raise ValueError("its checksum does not match")
    return state, float(final_loss)


def _checksum(state: Mapping[str, Tensor], final_loss: str) -> str:
    return hashlib.sha256(f"{state_digest(state)}|{final_loss}".encode()).hexdigest()

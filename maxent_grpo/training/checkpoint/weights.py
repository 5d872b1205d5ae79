"""Model weights in a checkpoint: a standard transformers folder, or an adapter in peft's format, read back bit for bit."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from maxent_grpo.errors import CheckpointError
from maxent_grpo.models.adapter import has_adapter, read_adapter_weights, save_adapter
from maxent_grpo.models.output_head import unwrapped
from maxent_grpo.training.checkpoint.together import Part
from maxent_grpo.training.checkpoint.whole import full_weights, load_full_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MODEL_FOLDER = "model"
"""Name of the transformers folder inside a checkpoint."""
ADAPTER_FOLDER = "adapter"
"""Name of the adapter's folder inside a checkpoint of a run that trains one; the base is not saved again."""
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_NAMES_SHOWN = 4


def weights_part(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> Part:
    """What is trained of a model, which processes may share: the adapter where there is one, else the model with its tokenizer."""
    inner: PreTrainedModel = unwrapped(model)

    def write(checkpoint: Path, weights: Mapping[str, Tensor]) -> None:
        if has_adapter(inner):
            save_adapter(checkpoint / ADAPTER_FOLDER, inner, weights)
        else:
            save_model(checkpoint / MODEL_FOLDER, inner, tokenizer, weights)

    return Part(partial(full_weights, model), write)


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Bring a live model, with its adapter where the run trains one, to the weights of a checkpoint.

    Raises:
        CheckpointError: the checkpoint holds other weights than the model has; then nothing has changed.
    """
    if not has_adapter(model):
        load_model_weights(model, checkpoint / MODEL_FOLDER)
        return
    folder = checkpoint / ADAPTER_FOLDER
    try:
        load_full_weights(model, read_adapter_weights(folder))
    except ValueError as error:
        raise CheckpointError(f"the adapter in {folder} does not fit the model: {error}") from error


def save_model(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write model and tokenizer as a folder that ``from_pretrained`` and inference servers load; weights as safetensors.

    ``weights`` are whole ones by name; None takes the model's own.
    """
    model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
    tokenizer.save_pretrained(folder)


def load_model_weights(model: nn.Module, folder: Path) -> None:
    """Copy the weights of a transformers folder into the model's parameters and buffers, in place.

    Tied parameters stay tied. Everything is compared before anything is copied, so a refused folder changes nothing. Buffers
    that a model does not save (rotary frequencies) follow from its configuration and are left alone.

    Raises:
        CheckpointError: no safetensors there, or a name, shape or type differs from the model's.
    """
    saved = _read(folder)
    state: dict[str, Tensor] = unwrapped(model).state_dict()
    unknown = sorted(saved.keys() - state.keys())
    if unknown:
        raise CheckpointError(f"the weights in {folder} do not fit the model: it has no {_some(unknown)}")
    groups = _tied_groups(state)
    missing = sorted(name for names in groups for name in names if not any(other in saved for other in names))
    if missing:
        raise CheckpointError(f"the weights in {folder} do not fit the model: they lack {_some(missing)}")
    for name, tensor in saved.items():
        ours = state[name]
        if tensor.shape != ours.shape or tensor.dtype != ours.dtype:
            raise CheckpointError(
                f"the weights in {folder} do not fit the model: {name} is {_form(tensor)} there and {_form(ours)} here"
            )
    for names in groups:
        first, *others = [name for name in names if name in saved]
        for other in others:
            if not _same_bits(saved[first], saved[other]):
                raise CheckpointError(
                    f"the weights in {folder} do not fit the model: it ties {first} and {other}, which differ there"
                )
    load_full_weights(model, saved)


def _read(folder: Path) -> dict[str, Tensor]:
    try:
        if (folder / _INDEX).is_file():
            index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
            files = sorted({Path(name).name for name in index["weight_map"].values()})
        elif (folder / _SINGLE).is_file():
            files = [_SINGLE]
        else:
            raise CheckpointError(f"{folder} holds no {_SINGLE}; weights in other formats (pickles) are not read")
        saved: dict[str, Tensor] = {}
        for file in files:
            saved.update(safetensors.torch.load_file(folder / file))
    except (OSError, ValueError, KeyError, AttributeError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"cannot read the weights in {folder}: {error}") from error
    return saved


def _tied_groups(state: dict[str, Tensor]) -> list[list[str]]:
    """Names by the memory they stand for: one list for each distinct tensor."""
    groups: dict[object, list[str]] = defaultdict(list)
    for name, tensor in state.items():
        memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else name
        groups[memory].append(name)
    return list(groups.values())


def _same_bits(left: Tensor, right: Tensor) -> bool:
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right)]
    return torch.equal(*flat)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"

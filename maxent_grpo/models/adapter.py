"""Low-rank adapters that stand in a model: their matrices, their files, and the model that they and the base make together.

A layer y = W x with an adapter computes y = W x + s B A x, W frozen, B and A trained, s = alpha / rank. Nothing here changes W,
not even for a moment: merged weights are tensors of their own. peft's layers are known by their matrices, so that peft itself is
imported in ``lora.py`` only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel

from maxent_grpo.models.weight_cache import state_digest

ADAPTER = "default"
"""Name of the adapter that is trained, inside the model; files do not carry it."""
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_FILE_PREFIX = "base_model.model."
"""What peft puts before the name of a layer in a file."""
_INSIDE = ".base_layer."
"""What a layer with an adapter puts into the names of its own weights."""


def adapter_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name and module of every layer with matrices beside it."""
    for name, module in model.named_modules():
        if ADAPTER in getattr(module, "lora_A", ()):
            yield name, module


def has_adapter(model: nn.Module) -> bool:
    """Whether the model is a base with an adapter."""
    return next(adapter_layers(model), None) is not None


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained matrices, by the names that files give them."""
    return {
        f"{_FILE_PREFIX}{name}.{side}.weight": getattr(layer, side)[ADAPTER].weight
        for name, layer in adapter_layers(model)
        for side in ("lora_A", "lora_B")
    }


def parameters_text(model: PreTrainedModel) -> str:
    """How many parameters there are, and how many of them are trained where that is not all."""
    trained = sum(parameter.numel() for parameter in adapter_parameters(model).values())
    total = f"{model.num_parameters():,}"
    return f"{total}, of which the adapter's {trained:,} are trained" if trained else total


def base_state(model: nn.Module) -> dict[str, Tensor]:
    """The base's weights under the names that they have without an adapter."""
    own = {id(parameter) for parameter in adapter_parameters(model).values()}
    state = model.state_dict(keep_vars=True)
    return {name.replace(_INSIDE, "."): value.detach() for name, value in state.items() if id(value) not in own}


def adapter_digest(model: nn.Module) -> str:
    """SHA-256 of the trained matrices."""
    return state_digest(adapter_parameters(model))


def base_digest(model: nn.Module) -> str:
    """SHA-256 of the base's weights; an adapter belongs to one base."""
    return state_digest(base_state(model))


def save_adapter(folder: Path, model: PreTrainedModel, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write the adapter as peft does: `adapter_config.json` and `adapter_model.safetensors`, without the base.

    ``weights`` are its matrices by their names in files; None takes the model's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = adapter_parameters(model) if weights is None else weights
    state = {name: value.detach().cpu().contiguous() for name, value in written.items()}
    safetensors.torch.save_file(state, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    described: Any = deepcopy(model.peft_config[ADAPTER])  # pyright: ignore[reportAttributeAccessIssue]
    described.inference_mode = True  # as peft writes it: whoever loads the file says whether it is to be trained
    if isinstance(described.target_modules, set):
        described.target_modules = sorted(described.target_modules)  # the same file for the same adapter
    described.save_pretrained(str(folder))


def read_adapter_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of an adapter's file.

    Raises:
        ValueError: there is no such file, or it cannot be read; says which.
    """
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise ValueError(f"{folder} holds no {WEIGHTS_FILE}; weights in other formats (pickles) are not read")
    try:
        return safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def set_adapter_weights(model: nn.Module, state: Mapping[str, Tensor], *, cast: bool) -> None:
    """Copy an adapter's tensors into the model's; everything is compared first, so that a refused one changes nothing.

    ``cast`` takes tensors of another floating-point type; without it the type must be the same.

    Raises:
        ValueError: a name, shape or type differs; says which.
    """
    own = adapter_parameters(model)
    if unknown := sorted(state.keys() - own.keys()):
        raise ValueError(f"it has {_some(unknown)}, which the model has not")
    if missing := sorted(own.keys() - state.keys()):
        raise ValueError(f"it lacks {_some(missing)}")
    for name, value in state.items():
        here = own[name]
        if value.shape != here.shape or (value.dtype != here.dtype and not cast):
            raise ValueError(f"{name} is {_form(value)} there and {_form(here)} here")
    with torch.no_grad():
        for name, value in state.items():
            own[name].copy_(value)


def shared_copy(model: PreTrainedModel, copied: Collection[Tensor] = ()) -> PreTrainedModel:
    """The model's modules again over the same tensors, but for those in ``copied``, which the copy has for itself."""
    own = {id(tensor) for tensor in copied}
    shared = (tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in own)
    return deepcopy(model, {id(tensor): tensor for tensor in shared})


def without_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """The base by itself, over the same tensors; the model keeps its adapter."""
    base = shared_copy(model)
    for name, layer in list(adapter_layers(base)):
        base.set_submodule(name, layer.base_layer)
    if hasattr(base, "peft_config"):
        del base.peft_config
    return base


def merged_model(model: PreTrainedModel, device: torch.device | None = None) -> PreTrainedModel:
    """The model with W + s B A in place of each layer with an adapter, an ordinary transformers model.

    The sum is taken in the adapter's type, which has at least 32 bits, and rounded once to the base's. Every other weight is
    the model's own tensor. A model without an adapter comes back over its own tensors. ``device`` takes the sums, one by one, so
    that they need no room beside the model; None leaves them where the model is.
    """
    weights = {name: merged_weight(layer).to(device) for name, layer in adapter_layers(model)}
    merged = without_adapter(model)
    for name, weight in weights.items():
        merged.get_submodule(name).weight = nn.Parameter(weight, requires_grad=False)
    return merged


def merged_weight(layer: Any) -> Tensor:
    """W + s B A of one layer, a new tensor of W's type."""
    with torch.no_grad():
        update = layer.get_delta_weight(ADAPTER)
        weight = layer.base_layer.weight
        return (weight.to(update.dtype) + update).to(weight.dtype)


def merged_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights that base and adapter make together, by the base's names, as a copy that shares nothing with the model.

    For a sampler that holds weights of its own: however often it is made, the base keeps its bits.
    """
    layers = {f"{name}.weight": layer for name, layer in adapter_layers(model)}
    copies: dict[int, Tensor] = {}  # weights that are tied stay one tensor
    state: dict[str, Tensor] = {}
    for name, tensor in base_state(model).items():
        if name in layers:
            state[name] = merged_weight(layers[name])
        else:
            key = tensor.data_ptr() or id(tensor)
            state[name] = copies[key] if key in copies else copies.setdefault(key, tensor.clone())
    return state


def _some(names: list[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"

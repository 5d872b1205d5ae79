"""Puts a low-rank adapter into a model: a fresh one, or one that is there already. The only place that imports peft."""

from __future__ import annotations

import difflib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from maxent_grpo.config.model import ALL_LINEAR, LoraConfig, ModelConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.adapter import (
    ADAPTER,
    CONFIG_FILE,
    WEIGHTS_FILE,
    adapter_layers,
    adapter_parameters,
    read_adapter_weights,
    set_adapter_weights,
)
from maxent_grpo.models.published import base_name

DEFAULT_RANK = 16
LINEAR = (nn.Linear, Conv1D)
UNDERSTOOD = frozenset({
    *("r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"),
    *("layers_to_transform", "layers_pattern", "fan_in_fan_out", "lora_dropout", "init_lora_weights", "inference_mode"),
    *("base_model_name_or_path", "revision", "task_type", "peft_type", "peft_version", "auto_mapping"),
})  # fmt: skip
"""What an adapter's configuration may say; anything else that differs from peft's default is refused."""
PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Ways of making the first matrices that leave the base as it is."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExistingAdapter:
    """An adapter's files."""

    folder: Path
    settings: dict[str, Any]


def attach_adapter(model: PreTrainedModel, config: ModelConfig, seed: int) -> None:
    """Freeze the model and put the adapter that `model.lora` asks for into it; without `model.lora.enabled` do nothing.

    The matrices have at least 32 bits whatever the base has, since the steps of training are too small for fewer. A fresh
    adapter changes no output: B is 0. Its A is drawn from ``seed``; no other random state is read or changed.

    Raises:
        ConfigError: the adapter cannot be found or read, does not fit the model, or contradicts the settings.
    """
    settings = config.lora
    if not settings.enabled:
        return
    existing = None if settings.adapter is None else _find(settings.adapter)
    described = _fresh(model, settings) if existing is None else _described(existing, settings)
    described.base_model_name_or_path = base_name(config)
    asked = None if settings.target_modules is None else set(target_layers(model, settings.target_modules))
    _inject(model, described, seed)
    if existing is not None:
        _check_layers(model, settings, asked)
        _load(model, existing, settings)


def linear_layers(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Every linear layer by name, the output head among them."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LINEAR)}


def target_layers(model: PreTrainedModel, names: list[str]) -> list[str]:
    """The layers that `model.lora.target_modules` means, by full name.

    Raises:
        ConfigError: a name is that of no linear layer, or of an output head that shares the embedding's weights.
    """
    layers, head = linear_layers(model), model.get_output_embeddings()
    inner = [name for name, module in layers.items() if module is not head]
    if names == [ALL_LINEAR]:
        return inner
    chosen: list[str] = []
    for target in names:
        found = [name for name in layers if name == target or name.endswith(f".{target}")]
        if not found:
            known = list(dict.fromkeys(name.rpartition(".")[2] for name in layers))
            guess = difflib.get_close_matches(target, known, n=1)
            hint = f"did you mean {guess[0]}? There are" if guess else "there are"
            raise ConfigError(
                f"model.lora.target_modules: no linear layer of {type(model).__name__} is called {target}; {hint} "
                f"{', '.join(known)}"
            )
        chosen += found
    _check_head(model, chosen)
    return list(dict.fromkeys(chosen))


def _check_head(model: PreTrainedModel, chosen: list[str]) -> None:
    """Matrices beside a tied head would move the head away from the embedding, which shares its weights."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = [name for name in chosen if model.get_submodule(name) is head]
    if tied and getattr(head, "weight", None) is getattr(embedding, "weight", None):
        raise ConfigError(
            f"model.lora.target_modules names {tied[0]}, which shares its weights with the token embedding in "
            f"{type(model).__name__}: with matrices of its own it would no longer; leave it out"
        )


def _fresh(model: PreTrainedModel, settings: LoraConfig) -> Any:
    """peft's description of a new adapter."""
    from peft import LoraConfig as PeftLoraConfig
    from peft import TaskType

    rank = DEFAULT_RANK if settings.rank is None else settings.rank
    alpha = 2.0 * rank if settings.alpha is None else settings.alpha
    layers = target_layers(model, settings.target_modules or [ALL_LINEAR])
    for name in layers:
        narrow = min(model.get_submodule(name).weight.shape)  # pyright: ignore
        if rank > narrow:
            raise ConfigError(
                f"model.lora.rank={rank} is more than {name} has to adapt, which is {narrow} wide: use "
                f"model.lora.rank={narrow} or less"
            )
    return PeftLoraConfig(
        r=rank,
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,  # pyright: ignore[reportArgumentType]
        use_rslora=bool(settings.use_rslora),
        lora_dropout=0.0,
        target_modules=_short_names(model, layers),
        fan_in_fan_out=all(isinstance(model.get_submodule(name), Conv1D) for name in layers),
        task_type=TaskType.CAUSAL_LM,
    )


def _short_names(model: PreTrainedModel, layers: list[str]) -> list[str]:
    """The last parts of the layers' names, where these mean no other layer; else the full names."""
    short = sorted({name.rpartition(".")[2] for name in layers})
    meant = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in short}
    return short if meant == set(layers) else layers


def _find(source: str) -> ExistingAdapter:
    """The files of an adapter, fetched from the hub unless ``source`` is a folder."""
    if Path(source).is_dir():
        folder = Path(source)
    else:
        try:
            folder = Path(hf_hub_download(source, CONFIG_FILE)).parent
            hf_hub_download(source, WEIGHTS_FILE)
        except (HFValidationError, HfHubHTTPError, OSError, ValueError) as error:
            raise ConfigError(
                f"model.lora.adapter={source}: is no folder here, and the hub does not give {CONFIG_FILE} and {WEIGHTS_FILE} of "
                f"it ({str(error).splitlines()[0]}); name a folder with these two files, or a hub id"
            ) from error
    try:
        settings = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.lora.adapter={source}: holds no readable {CONFIG_FILE} ({error}); name a folder that peft, or a run with "
            f"model.lora.enabled=true, has written"
        ) from error
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        kind = settings.get("peft_type") if isinstance(settings, dict) else None
        raise ConfigError(f"model.lora.adapter={source}: is not a LoRA adapter (its peft_type is {kind})")
    return ExistingAdapter(folder, settings)


def _described(existing: ExistingAdapter, settings: LoraConfig) -> Any:
    """peft's description of the adapter, its own settings; what `model.lora` says beside must agree."""
    from peft import LoraConfig as PeftLoraConfig

    plain = PeftLoraConfig().to_dict()
    source, found = settings.adapter, existing.settings
    strange = sorted(
        name for name, value in found.items() if name not in UNDERSTOOD and value and value != plain.get(name)
    )
    if strange:
        shown = ", ".join(f"{name}={found[name]}" for name in strange)
        raise ConfigError(f"model.lora.adapter={source}: its {CONFIG_FILE} asks for {shown}, which is not offered here")
    start = found.get("init_lora_weights", True)
    if start not in PLAIN_STARTS:
        raise ConfigError(
            f"model.lora.adapter={source}: its matrices were begun by init_lora_weights={start}, which changes the base; let "
            f"peft convert it to a plain adapter first"
        )
    own = {"rank": found.get("r"), "alpha": found.get("lora_alpha"), "use_rslora": found.get("use_rslora", False)}
    problems = [
        f"model.lora.{name}={_shown(asked)}: the adapter in model.lora.adapter={source} has {name} {_shown(value)}; an adapter "
        f"keeps its own, so write model.lora.{name}=null"
        for name, value in own.items()
        if (asked := getattr(settings, name)) is not None and asked != value
    ]
    if problems:
        raise ConfigError(problems)
    if found.get("lora_dropout"):
        logger.warning(
            "the adapter's lora_dropout=%s is left out: sampling and training see one policy", found["lora_dropout"]
        )
    known = {name: value for name, value in found.items() if name in UNDERSTOOD - {"peft_version", "auto_mapping"}}
    known |= {"lora_dropout": 0.0, "init_lora_weights": True, "inference_mode": False}
    return PeftLoraConfig(**known)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _inject(model: PreTrainedModel, described: Any, seed: int) -> None:
    from peft import inject_adapter_in_model

    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(described, model, ADAPTER)
        except ValueError as error:  # an adapter whose layers the model has not
            raise ConfigError(f"the adapter cannot be put into {type(model).__name__}: {error}") from error
    for parameter in adapter_parameters(model).values():
        if parameter.dtype.itemsize < torch.float32.itemsize:
            parameter.data = parameter.data.float()
        parameter.requires_grad_(True)


def _check_layers(model: PreTrainedModel, settings: LoraConfig, asked: set[str] | None) -> None:
    """An existing adapter's layers are not a tied head, and are those that `model.lora.target_modules` asks for if it does."""
    here = {name for name, _ in adapter_layers(model)}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    source = settings.adapter
    tied = getattr(head, "weight", None) is getattr(embedding, "weight", None)
    if tied and any(layer is head for _, layer in adapter_layers(model)):
        raise ConfigError(
            f"model.lora.adapter={source}: adapts the output head of {type(model).__name__}, which shares its weights with the "
            f"token embedding"
        )
    if asked is not None and asked != here:
        own = ",".join(sorted({name.rpartition(".")[2] for name in here}))
        raise ConfigError(
            f"model.lora.target_modules=[{','.join(settings.target_modules or [])}]: the adapter in model.lora.adapter={source} has "
            f"other layers, [{own}]; an adapter keeps its own, so write model.lora.target_modules=null"
        )


def _load(model: PreTrainedModel, existing: ExistingAdapter, settings: LoraConfig) -> None:
    try:
        set_adapter_weights(model, read_adapter_weights(existing.folder), cast=True)
    except ValueError as error:
        raise ConfigError(
            f"model.lora.adapter={settings.adapter}: does not fit {type(model).__name__}: {error}; name an adapter of this base"
        ) from error

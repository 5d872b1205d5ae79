"""Models with trained weights: a transformers folder or a hub id, read into memory with its tokenizer.

Everything that can be wrong is looked for in the order of what it costs: files, configuration, tokenizer, weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.config.model import HfModelConfig, ModelConfig, SmolLM2ModelConfig
from maxent_grpo.config.preflight_model import folder_problem
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.architecture import (
    check_attention,
    check_positions,
    drop_dropout,
    read_config,
    silence_dropout,
)
from maxent_grpo.models.declared_ends import declared_ends, describe_ends, settle_generation_config
from maxent_grpo.models.hub import described_folder, weights_folder
from maxent_grpo.models.packaged import checked_folder
from maxent_grpo.models.pretrained_tokenizer import check_vocabulary, read_tokenizer

NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model as it was read, its tokenizer, and what a user should know of how it was read."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    notes: tuple[str, ...]


def load_smollm2(config: SmolLM2ModelConfig, dtype: torch.dtype, positions: int) -> Pretrained:
    """The converted package; see ``models/packaged.py``."""
    named = HfModelConfig(name=str(checked_folder(config.cache_dir)), attention=config.attention)
    return load_hf(named, dtype, positions)


def load_hf(config: HfModelConfig, dtype: torch.dtype, positions: int) -> Pretrained:
    """The model that `model.name` names, its dropout off; on the meta device only its shapes.

    Args:
        config: the settings.
        dtype: type of the weights.
        positions: most tokens of a prompt with its completion.

    Raises:
        ConfigError: it cannot be had, is no causal language model, or does not fit the settings or its tokenizer.
    """
    name, setting = config.name, f"model.name={config.name}"
    folder = described_folder("model.name", name, config.revision, with_code=config.trust_remote_code)
    if folder == Path(name):
        problem = folder_problem(folder, needs_tokenizer=config.tokenizer is None)
        if problem:
            raise ConfigError(f"{setting}: {problem}")
    elif not (folder / "config.json").is_file():
        raise ConfigError(
            f"{setting}: has no config.json: it is an adapter, a GGUF file or no model; name the model it is of"
        )
    described = read_config(name, folder, trust_remote_code=config.trust_remote_code)
    check_attention(config.attention, described, name)
    check_positions(described, name, positions)
    tokenizer_setting, tokenizer_folder = setting, folder
    if config.tokenizer is not None:
        tokenizer_setting = f"model.tokenizer={config.tokenizer}"
        tokenizer_folder = described_folder("model.tokenizer", config.tokenizer, None)
    tokenizer = read_tokenizer(
        tokenizer_setting,
        tokenizer_folder,
        chat_template=config.chat_template,
        trust_remote_code=config.trust_remote_code,
    )
    rates = drop_dropout(described)
    described._attn_implementation = str(config.attention)
    if torch.get_default_device().type == "meta":
        model = AutoModelForCausalLM.from_config(described, dtype=dtype, trust_remote_code=config.trust_remote_code)
    else:
        model = _with_weights(setting, weights_folder("model.name", name, config.revision), described, config, dtype)
    check_vocabulary(tokenizer_setting, tokenizer, model)
    silence_dropout(model)
    return Pretrained(model, tokenizer, tuple(_settled(model, tokenizer, folder, rates)))


def _settled(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, rates: dict[str, float]
) -> list[str]:
    """Settle what ends a completion; returns the notes of everything that is not as the folder has it."""
    notes: list[str] = []
    if rates:
        given = ", ".join(f"{key}={rate:g}" for key, rate in rates.items())
        notes.append(
            f"model: dropout is off ({given} in its configuration): completions are sampled without it as well"
        )
    ends = declared_ends(tokenizer, folder)
    notes.append(f"model: a completion ends with {describe_ends(ends, tokenizer)}")
    notes += [
        f"model: saved with generation_config changed: {change}" for change in settle_generation_config(model, ends)
    ]
    return notes


def _with_weights(
    setting: str, folder: Path, described: PretrainedConfig, config: ModelConfig, dtype: torch.dtype
) -> PreTrainedModel:
    """The model with its weights, every one of which came from the folder."""
    trusted = isinstance(config, HfModelConfig) and config.trust_remote_code
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=described,
            dtype=dtype,
            attn_implementation=str(config.attention),
            use_safetensors=True,
            trust_remote_code=trusted,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, ImportError, KeyError, SafetensorError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(
            f"{setting}: its weights cannot be read ({lines[0] if lines else type(error).__name__}); copy or download the whole "
            "folder again"
        ) from error
    model, report = loaded
    _check_complete(setting, report)
    return cast(PreTrainedModel, model)


def _check_complete(setting: str, report: dict[str, Any]) -> None:
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        more = f" and {len(missing) - NAMES_SHOWN} more" if len(missing) > NAMES_SHOWN else ""
        raise ConfigError(
            f"{setting}: its weights lack {', '.join(missing[:NAMES_SHOWN])}{more}, which would start at random; name a folder "
            "with all weights of a causal language model"
        )

"""What a model's configuration says about it, looked at before any weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from maxent_grpo.config.model import Attention
from maxent_grpo.errors import ConfigError

CAUSAL = "model.name must be a causal language model (…ForCausalLM)"
DROPOUT = ("dropout", "drop", "pdrop", "layerdrop")


def read_config(name: str, folder: Path, *, trust_remote_code: bool) -> PretrainedConfig:
    """The configuration of a causal language model that can be trained.

    Raises:
        ConfigError: it is none, is quantised, or needs code that may not be run.
    """
    described, _ = PretrainedConfig.get_config_dict(folder)
    # the library calls what it does not know needing code; where the folder brings none it is just not known
    known = described.get("model_type") in CONFIG_MAPPING
    if not known and "AutoConfig" not in described.get("auto_map", {}):
        raise ConfigError(
            f"model.name={name}: its architecture {described.get('model_type')!r} is not known to the installed transformers; "
            f"install a newer one, or name another model"
        )
    if not known and not trust_remote_code:
        raise ConfigError(
            f"model.name={name}: its architecture {described.get('model_type')!r} is Python code in its repository, which is "
            f"not run unasked; read that code, then write model.trust_remote_code=true (and model.revision=<commit> to keep to "
            f"what was read), or name another model"
        )
    try:
        config = cast(PretrainedConfig, AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code))
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"model.name={name}: its config.json cannot be used: {_line(error)}") from error
    problem = _not_causal(config, with_code=trust_remote_code)
    if problem:
        raise ConfigError(f"model.name={name}: {problem}")
    return config


def _not_causal(config: PretrainedConfig, *, with_code: bool) -> str:
    """Why a configuration is not that of a causal language model with trainable weights; empty when it is."""
    saved = [str(kind) for kind in config.architectures or []]
    shown = " / ".join(saved) or config.model_type
    if getattr(config, "is_encoder_decoder", False):
        return f"{shown} is an encoder-decoder; {CAUSAL}"
    if config.get_text_config() is not config:
        return f"{shown} reads images or sound besides text; {CAUSAL}: name its text model"
    if getattr(config, "quantization_config", None):
        return "its weights are quantised, and quantised weights cannot be trained; name the model they were made from"
    if with_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return ""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or (saved and not set(saved) & _class_names(config)):
        return f"{shown} is no language model that writes text; {CAUSAL}"
    return ""


def _class_names(config: PretrainedConfig) -> set[str]:
    """Classes of causal language models that the library has for an architecture."""
    classes: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    names = {kind.__name__ for kind in (classes if isinstance(classes, tuple) else (classes,))}
    listed = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    return names | ({listed} if isinstance(listed, str) else set(listed or ()))


def check_attention(setting: Attention, config: PretrainedConfig, name: str) -> None:
    """Refuse an attention implementation that would compute something else than the architecture's attention.

    Raises:
        ConfigError: the architecture has no such implementation, or it leaves out a part of it.
    """
    softcap = getattr(config, "attn_logit_softcapping", None)
    if softcap is not None and setting is Attention.sdpa:
        raise ConfigError(
            f"model.attention=sdpa leaves out the capping of attention scores (attn_logit_softcapping={softcap:g}) that "
            f"model.name={name} was trained with; write model.attention=eager"
        )
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    kind = kind[0] if isinstance(kind, tuple) else kind
    flag = {Attention.sdpa: "_supports_sdpa", Attention.flash_attention_2: "_supports_flash_attn"}.get(setting)
    if kind is not None and flag is not None and not getattr(kind, flag, False):
        raise ConfigError(f"model.attention={setting}: {kind.__name__} does not have it; write model.attention=eager")


def check_positions(config: PretrainedConfig, name: str, needed: int) -> None:
    """Refuse limits on lengths that a model has no positions for.

    Raises:
        ConfigError: ``needed`` tokens, prompt and completion, are more than the model takes.
    """
    held = next(
        (getattr(config, key) for key in ("max_position_embeddings", "n_positions") if hasattr(config, key)), None
    )
    if isinstance(held, int) and held < needed:
        raise ConfigError(
            f"generation.max_prompt_len + generation.max_completion_len = {needed} tokens, and model.name={name} has "
            f"{held} positions; lower one of them, or name a model with a longer context"
        )


def drop_dropout(config: PretrainedConfig) -> dict[str, float]:
    """Set every dropout rate of a configuration to 0; returns those that were above.

    Completions are sampled without dropout, and the ratio of new to old log-probabilities compares like with like only if
    training has none either.
    """
    rates = {
        key: float(value)
        for key, value in config.to_dict().items()
        if _is_dropout(key) and isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    }
    for key in rates:
        setattr(config, key, 0.0)
    return rates


def silence_dropout(model: PreTrainedModel) -> None:
    """Set the dropout layers to 0 that an architecture gives a rate of its own."""
    for module in model.modules():
        if type(module).__name__.startswith("Dropout") and hasattr(module, "p"):
            cast(Any, module).p = 0.0


def _is_dropout(key: str) -> bool:
    return any(part in DROPOUT for part in key.split("_")) and not key.startswith(("summary_", "classifier_"))


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

"""What a base model is called where it is published, and under which license."""

from __future__ import annotations

from pathlib import Path

from maxent_grpo.config.model import HfModelConfig, ModelConfig, SmolLM2ModelConfig
from maxent_grpo.models.packaged import smollm2_folder

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
LICENSE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE")


def base_name(config: ModelConfig) -> str | None:
    """Hub id or folder of the base as it was given; None for a model that is made here."""
    if isinstance(config, SmolLM2ModelConfig):
        return SMOLLM2
    return config.name if isinstance(config, HfModelConfig) else None


def hub_id(config: ModelConfig) -> str | None:
    """The base's name on the hub; None for a local folder and for a model that is made here."""
    name = base_name(config)
    return None if name is None or Path(name).exists() or name.count("/") > 1 or name.startswith((".", "/")) else name


def published_name(config: ModelConfig) -> str | None:
    """What others may be told of the base: its hub id, or the last part of a local folder's path."""
    name = base_name(config)
    return name if name is None or hub_id(config) is not None else Path(name).name


def license_name(config: ModelConfig) -> str | None:
    """Identifier of the base's license where it is known without asking."""
    return "apache-2.0" if isinstance(config, SmolLM2ModelConfig) else None


def license_files(config: ModelConfig) -> list[Path]:
    """The license texts that lie beside the base's weights on this machine."""
    if isinstance(config, SmolLM2ModelConfig):
        folder = smollm2_folder(config.cache_dir)
    elif isinstance(config, HfModelConfig):
        folder = Path(config.name)
    else:
        return []
    return [folder / name for name in LICENSE_FILES if (folder / name).is_file()]

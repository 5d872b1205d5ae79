"""A trained model as a folder that others load: weights, tokenizer, generation settings, model card, license.

The folder appears whole or not at all. It is a plain transformers model, whether every weight was trained or an adapter, which
is merged into a copy; the adapter alone is a folder in peft's format.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from maxent_grpo.models.adapter import merged_model, save_adapter
from maxent_grpo.report.atomic import sync_directory

LARGEST_FILE = "5GB"
"""Weights beyond this are cut into several files."""
CARD = "README.md"
ADAPTER_CONFIG = "adapter_config.json"


def write_model_folder(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, card: str, licenses: Sequence[Path]
) -> None:
    """Write the model, an adapter merged into it, as a transformers folder; one that is there is replaced."""
    plain = merged_model(model, torch.device("cpu"))
    plain.generation_config = generation_settings(model, tokenizer)

    def fill(working: Path) -> None:
        plain.save_pretrained(working, max_shard_size=LARGEST_FILE)
        _finish(working, tokenizer, card, licenses)

    _replace(folder, fill)


def write_adapter_folder(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    card: str,
    licenses: Sequence[Path],
    base: str | None,
) -> None:
    """Write the model's adapter by itself, as peft does; one that is there is replaced.

    ``base`` is what the folder says of the base model: its name, not where it lies on this machine.
    """

    def fill(working: Path) -> None:
        save_adapter(working, model)
        described = json.loads((working / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        described["base_model_name_or_path"] = base
        (working / ADAPTER_CONFIG).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        _finish(working, tokenizer, card, licenses)

    _replace(folder, fill)


def generation_settings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """What `generate` has to know: the tokens that begin, end and fill a sequence.

    How to sample is left to whoever uses the model. The base's own recommendations (temperature, top-k, repetition penalty)
    were made for other weights, and training's temperature is a setting of training; the model card names it.
    """
    declared = model.generation_config.eos_token_id if model.generation_config else None
    listed = declared if isinstance(declared, list) else [declared]
    ends = sorted({token for token in [*listed, tokenizer.eos_token_id] if isinstance(token, int)})
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=ends[0] if len(ends) == 1 else ends,
        pad_token_id=tokenizer.pad_token_id,
    )


def _finish(folder: Path, tokenizer: PreTrainedTokenizerBase, card: str, licenses: Sequence[Path]) -> None:
    tokenizer.save_pretrained(folder)
    (folder / CARD).write_text(card, encoding="utf-8")
    for text in licenses:
        shutil.copyfile(text, folder / text.name)


def _replace(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write a folder beside the final one, make it durable, and put it in its place."""
    working, old = (folder.with_name(f".{folder.name}.{kind}-{os.getpid()}") for kind in ("partial", "replaced"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        fill(working)
        for path in working.rglob("*"):
            if path.is_file():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
        sync_directory(working)
        if folder.exists():
            os.rename(folder, old)
        os.rename(working, folder)
        sync_directory(folder.parent)
    finally:
        for left in (working, old):
            shutil.rmtree(left, ignore_errors=True)

"""Gate 4 for `model`: the files, folders and packages that the chosen model needs, looked at without importing torch."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from maxent_grpo.config.installed import find_module
from maxent_grpo.config.model import SMOLLM2_FOLDER, Attention, HfModelConfig, ModelConfig, SmolLM2ModelConfig

HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
"""What can be the name of a model on the hub: a name, or an owner and a name."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
COMPILERS = ("g++", "c++", "clang++")


def model_problems(model: ModelConfig) -> Iterator[str]:
    """The sentence of everything that this machine lacks for the model."""
    if model.attention is Attention.flash_attention_2 and find_module("flash_attn") is None:
        yield (
            "model.attention=flash_attention_2: the package flash-attn is not installed; install it (pip install flash-attn, "
            "which needs a CUDA compiler), or write model.attention=sdpa, which also has fused kernels"
        )
    if model.compile and not _has_compiler():
        yield (
            f"model.compile=true: torch.compile needs a C++ compiler, and none of {', '.join(COMPILERS)} is on the path; "
            f"install one, name it in the environment variable CXX, or write model.compile=false"
        )
    if isinstance(model, SmolLM2ModelConfig) and not (Path(model.cache_dir) / SMOLLM2_FOLDER / "config.json").is_file():
        yield (
            f"model=smollm2: there is no converted model in {Path(model.cache_dir) / SMOLLM2_FOLDER}; fetch and convert it "
            f"once with `make smollm2` (93 MB)"
        )
    if isinstance(model, HfModelConfig):
        yield from _hf(model)


def is_local(name: str) -> bool:
    """Whether a name means a folder: one that is there, or that cannot be a hub id."""
    return Path(name).exists() or HUB_ID.fullmatch(name) is None


def _hf(model: HfModelConfig) -> Iterator[str]:
    if is_local(model.name):
        problem = folder_problem(Path(model.name), needs_tokenizer=model.tokenizer is None)
        if problem:
            yield f"model.name={model.name}: {problem}"
        if model.revision is not None:
            yield (
                f"model.revision={model.revision} names a version of a hub model, and model.name={model.name} is a local "
                f"folder; write model.revision=null"
            )
    if model.tokenizer is not None and is_local(model.tokenizer):
        problem = _tokenizer_problem(Path(model.tokenizer))
        if problem:
            yield f"model.tokenizer={model.tokenizer}: {problem}; name a folder with a saved tokenizer, or a hub id"
    if model.chat_template is not None:
        problem = _template_problem(Path(model.chat_template))
        if problem:
            yield f"model.chat_template={model.chat_template}: {problem}; name a file with a Jinja chat template"


def folder_problem(folder: Path, *, needs_tokenizer: bool) -> str:
    """Why a folder is not a model with weights and tokenizer, with what to do; empty when it is one."""
    if folder.is_file():
        if folder.suffix == ".gguf":
            return (
                "is a GGUF file, whose weights are quantised for inference; name a transformers folder with safetensors"
            )
        return "is a file; name the folder that holds config.json, the weights and the tokenizer"
    if not folder.is_dir():
        return "there is no such folder; name a folder as save_pretrained writes it, or a hub id such as owner/name"
    if not (folder / "config.json").is_file():
        return f"is not a model folder, as it has no config.json{_instead(folder)}"
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"its config.json cannot be read ({error}); save the model again with save_pretrained"
    if not isinstance(described, dict) or "model_type" not in described:
        return "its config.json names no model_type, so that its architecture is unknown; save it with save_pretrained"
    problem = weights_problem(folder)
    if not problem and needs_tokenizer and _tokenizer_problem(folder):
        problem = (
            f"{_tokenizer_problem(folder)}; save it there with tokenizer.save_pretrained, or name another folder or hub id "
            f"with model.tokenizer="
        )
    return problem


def weights_problem(folder: Path) -> str:
    """Why a folder's weights cannot be read, with what to do; empty when there are safetensors."""
    if any(folder.glob("*.safetensors")):
        return ""
    if any(folder.glob("*.gguf")):
        return "its weights are a GGUF file, quantised for inference; name a transformers folder with safetensors"
    pickles = sorted(path.name for path in [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if pickles:
        return (
            f"its weights are pickles ({pickles[0]}), which can run any code when they are read and are refused; save the model "
            f"again with save_pretrained, which writes safetensors"
        )
    return "holds no weights (*.safetensors); copy or download the whole folder"


def _instead(folder: Path) -> str:
    """What to name instead of a folder that is no model."""
    if (folder / "model" / "config.json").is_file():
        return f"; name {folder / 'model'}"
    if (folder / "checkpoints").is_dir():
        inner = sorted(path.parent for path in folder.glob("checkpoints/step_*/model/config.json"))
        example = inner[-1] if inner else folder / "checkpoints/step_N/model"
        return f"; it is a run directory: name the model of a checkpoint in it, such as {example}"
    if (folder / "adapter_config.json").is_file():
        return "; it holds a LoRA adapter: name the base model"
    if any(folder.glob("*.gguf")):
        return "; its weights are a GGUF file, quantised for inference: name a transformers folder with safetensors"
    return "; name a folder as save_pretrained writes it"


def _tokenizer_problem(folder: Path) -> str:
    if not folder.is_dir():
        return "there is no such folder"
    return "" if any((folder / name).is_file() for name in TOKENIZER_FILES) else "has no tokenizer"


def _template_problem(file: Path) -> str:
    if not file.is_file():
        return "there is no such file"
    try:
        return "" if file.read_text(encoding="utf-8").strip() else "is empty"
    except (OSError, UnicodeDecodeError) as error:
        return f"cannot be read as text ({error})"


def _has_compiler() -> bool:
    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ([named] if named else COMPILERS))

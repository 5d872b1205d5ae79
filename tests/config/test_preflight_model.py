"""What this machine lacks for a model is said before torch is imported, one sentence each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maxent_grpo.config import preflight_model
from maxent_grpo.config.contradictions_model import MODEL_RULES
from maxent_grpo.config.load import load_config
from maxent_grpo.config.model import Attention, HfModelConfig, SmolLM2ModelConfig, TinyModelConfig
from maxent_grpo.config.preflight_model import is_local, model_problems


def folder_of(tmp_path: Path) -> Path:
    """What looks like a model folder from outside."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).touch()
    return folder


def test_a_model_folder_and_a_hub_id_pass(tmp_path: Path) -> None:
    assert list(model_problems(HfModelConfig(name=str(folder_of(tmp_path))))) == []
    assert list(model_problems(HfModelConfig(name="owner/name", revision="v1.0", tokenizer="owner/other"))) == []


@pytest.mark.parametrize("name", ["/a/b", "./a", "../a/b", "~/a", "a/b/c", "a/", ".hidden", "a\\b"])
def test_what_cannot_be_a_hub_id_is_a_folder(name: str) -> None:
    assert is_local(name)
    [problem] = model_problems(HfModelConfig(name=name))
    assert problem == (
        f"model.name={name}: there is no such folder; name a folder as save_pretrained writes it, or a hub id such as owner/name"
    )


def test_settings_that_name_files_are_looked_up(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (tmp_path / "empty.jinja").touch()
    config = HfModelConfig(
        name=str(folder), revision="v1", tokenizer=str(tmp_path), chat_template=str(tmp_path / "none.jinja")
    )
    assert list(model_problems(config)) == [
        f"model.revision=v1 names a version of a hub model, and model.name={folder} is a local folder; write model.revision=null",
        f"model.tokenizer={tmp_path}: has no tokenizer; name a folder with a saved tokenizer, or a hub id",
        f"model.chat_template={tmp_path}/none.jinja: there is no such file; name a file with a Jinja chat template",
    ]
    [problem] = model_problems(HfModelConfig(name=str(folder), chat_template=str(tmp_path / "empty.jinja")))
    assert "empty.jinja: is empty; name a file" in problem


def test_a_model_that_was_not_prepared_names_the_command(tmp_path: Path) -> None:
    assert list(model_problems(SmolLM2ModelConfig(cache_dir=str(tmp_path)))) == [
        f"model=smollm2: there is no converted model in {tmp_path}/smollm2-135m-instruct; fetch and convert it once with "
        f"`make smollm2` (93 MB)"
    ]


def test_flash_attention_needs_16_bits_and_a_gpu() -> None:
    config = load_config(["run.device=cpu"])
    config.model.attention = Attention.flash_attention_2
    assert [sentence for rule in MODEL_RULES for sentence in rule(config)] == [
        "model.attention=flash_attention_2 computes in 16 bits, and model.dtype=float32: write model.dtype=bfloat16, or "
        "model.attention=sdpa",
        "model.attention=flash_attention_2 runs on GPUs only, and run.device=cpu: write model.attention=sdpa",
    ]


def test_missing_packages_and_compilers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preflight_model, "find_module", lambda _: None)
    [problem] = model_problems(TinyModelConfig(attention=Attention.flash_attention_2))
    assert problem.startswith("model.attention=flash_attention_2: the package flash-attn is not installed; install it")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert list(model_problems(TinyModelConfig())) == []
    assert list(model_problems(TinyModelConfig(compile=True))) == [
        "model.compile=true: torch.compile needs a C++ compiler, and none of g++, c++, clang++ is on the path; install one, name "
        "it in the environment variable CXX, or write model.compile=false"
    ]

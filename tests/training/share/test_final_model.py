"""The trained model that a run leaves behind: a folder that others load, with the same log-probabilities, and its card."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.runs import checkpoint_of, configured, inside_run, metric_lines, train
from support.tiny import tiny_llama, tiny_qwen2, tiny_tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from maxent_grpo.commands.export import main as export_command
from maxent_grpo.errors import CheckpointError
from maxent_grpo.models.adapter import merged_model
from maxent_grpo.training.loop import run_training
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.share import folder as folder_module
from maxent_grpo.training.share.card import publishable
from maxent_grpo.training.share.folder import write_model_folder

FINAL = ("checkpoint.final_model=true", "evaluation.enabled=false")
LORA = (*FINAL, "model.lora.enabled=true")
IDS = torch.tensor([[1, 5, 9, 30, 7, 12], [1, 40, 3, 3, 8, 21]])


def log_probs(model: Any) -> Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(IDS).logits, dim=-1)


def pretrained(folder: Path, build: Any = tiny_llama, **changes: Any) -> str:
    """A model of the hub's form in a folder, its generation configuration one that would leak."""
    model = build(torch.float32, max_position_embeddings=512, **changes)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.01, top_k=1, repetition_penalty=1.3, eos_token_id=[2, 7], pad_token_id=2, bos_token_id=1
    )  # fmt: skip
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    (folder / "LICENSE").write_text("the base's terms\n")
    return str(folder)


def trained(config: Any) -> Any:
    """Run to the end; the model as it then stands in memory."""
    models: list[Any] = []

    def body(ctx: Any, resources: Any, parts: Any) -> None:
        run_training(ctx, resources, parts)
        models.append(ctx.runtime.model)

    inside_run(config, body)
    return models[0].eval()


STARTS: dict[str, Any] = {
    "tiny": None,
    "untied": lambda folder: pretrained(folder),
    "tied": lambda folder: pretrained(folder, tie_word_embeddings=True),
    "tied qwen2": lambda folder: pretrained(folder, tiny_qwen2, tie_word_embeddings=True),
}

QUICK = {("tiny", False), ("tied qwen2", False), ("tied", True)}


@pytest.mark.parametrize(
    ("start", "lora"),
    [
        pytest.param(start, lora, marks=() if (start, lora) in QUICK else pytest.mark.slow, id=f"{start}-{kind}")
        for start in STARTS
        for lora, kind in ((False, "whole"), (True, "adapter"))
    ],
)
def test_the_folder_gives_the_log_probs_of_the_trained_model_bit_for_bit(
    start: str, lora: bool, tmp_path: Path
) -> None:
    build = STARTS[start]
    base = () if build is None else ("model=hf", f"model.name={build(tmp_path / 'base')}")
    live = trained(configured(tmp_path / "run", *(LORA if lora else FINAL), *base))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert loaded.dtype == torch.float32
    assert torch.equal(log_probs(loaded), log_probs(merged_model(live)))
    assert float((log_probs(loaded) - log_probs(live)).abs().max()) < 1e-4
    assert torch.equal(log_probs(loaded), log_probs(live)) or lora
    assert loaded.config.tie_word_embeddings == start.startswith("tied")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert tokenizer.chat_template == tiny_tokenizer().chat_template
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").exists() is lora
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_the_generation_settings_are_the_end_tokens_and_nothing_of_the_base_or_of_training(tmp_path: Path) -> None:
    base = pretrained(tmp_path / "base")
    train(tmp_path / "run", *FINAL, "model=hf", f"model.name={base}", "generation.temperature=0.7")
    kept = json.loads((tmp_path / "run" / "model" / "generation_config.json").read_text())
    kept.pop("transformers_version")
    assert kept == {"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": 0}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    greedy = loaded.generate(IDS, max_new_tokens=1, attention_mask=torch.ones_like(IDS))
    assert torch.equal(greedy[:, -1], loaded(IDS).logits[:, -1].argmax(dim=-1))
    assert (tmp_path / "run" / "model" / "LICENSE").read_text() == "the base's terms\n"


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    """The header's fields, and the text beneath."""
    text = (folder / "README.md").read_text()
    _, header, body = text.split("---\n", 2)
    return yaml.safe_load(header), body


def test_the_card_tells_what_the_run_recorded(tmp_path: Path) -> None:
    base = pretrained(tmp_path / "secret_place" / "my-base")
    overrides = [
        *("checkpoint.final_model=true", "model.lora.enabled=true", "model.lora.rank=4", "model=hf"),
        f"model.name={base}", "scoring=dr_grpo",
    ]  # fmt: skip
    config = configured(tmp_path / "run", *overrides)
    run_from_config(config, [*overrides, f"+note.key=hf_{'a1B2' * 8}", "+note.page=https://me:pass@example.org/x"])
    header, body = card_of(tmp_path / "run" / "model")
    assert header == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["maxent_grpo", "reinforcement-learning", "grpo", "dr_grpo", "coloring", "lora"],
    }
    first, last = (line for line in metric_lines(tmp_path / "run") if "eval/pass@1" in line)
    row = re.search(r"\| pass@1 \|.*\| (0\.\d{3}) \| (0\.\d{3}) \| (0\.\d{3}) \(step (\d)\) \|", body)
    assert row is not None
    assert [float(text) for text in row.groups()[:2]] == [
        pytest.approx(line["eval/pass@1"], abs=6e-4) for line in (first, last)
    ]
    assert float(row[3]) == pytest.approx(max(first["eval/pass@1"], last["eval/pass@1"]), abs=6e-4)
    assert "# my-base · coloring · dr_grpo\n" in body
    assert "Held-out problems (4), 8 samples of each at temperature 1" in body
    assert "| LoRA rank; layers | 4; all-linear |" in body
    assert "`num_eval=4`" in body
    assert "optimizer" not in body
    assert "section `dr_grpo`" in body
    assert "model.lora.enabled=true" in body
    assert f"torch {torch.__version__}" in body
    for text in ((tmp_path / "run" / name / "README.md").read_text() for name in ("model", "adapter")):
        assert "secret_place" not in text
        assert str(tmp_path) not in text
        assert "hf_a1B2" not in text
        assert "me:pass@" not in text
        assert "model.name=my-base" in text
        assert "checkpoint.final_model" not in text  # where and how it ran is not what was trained
    header, body = card_of(tmp_path / "run" / "adapter")
    assert header["library_name"] == "peft"
    assert "PeftModel.from_pretrained(base, " in body


def test_what_is_published_loses_folders_and_keys_and_keeps_formulas() -> None:
    for private, public in (
        ("data.path=/home/me/data/train.jsonl", "data.path=train.jsonl"),
        ("'model.name=/srv/models/a b'", "'model.name=a b'"),
        ("[/x/y.txt,/z/w.txt]", "[y.txt,w.txt]"),
        ("~/models/mine", "mine"),
        ("key=sk-abcdefghijklmnop", "key=*secret*"),
    ):
        assert publishable(private) == public
    for kept in (
        "sum 1/(N_seq T_max) min(rho A, clip(rho) A)", "(r - mean(r)) / std(r)", "docs/methods.md", "https://arxiv.org/abs/2503.20783",
        "<think>a</think>", "Qwen/Qwen2.5-0.5B", "4/t sigmoid(t (rho - 1)) A", "| a | b/c |", "softmax(r / q_temperature)",
    ):  # fmt: skip
        assert publishable(kept) == kept


def test_a_published_base_is_named_in_the_header_with_its_license(tmp_path: Path) -> None:
    from maxent_grpo.config.model import SmolLM2ModelConfig
    from maxent_grpo.models.published import license_files
    from maxent_grpo.report.record import read_record
    from maxent_grpo.training.share.card import Subject, model_card

    train(tmp_path / "run", "evaluation.enabled=false")
    config = configured(tmp_path / "other", "evaluation.enabled=false")
    config.model = SmolLM2ModelConfig(cache_dir=str(tmp_path))
    subject = Subject(config, read_record(tmp_path / "run"), 2, "bfloat16", 134_515_008, 134_515_008)
    for is_adapter, relation in ((False, "finetune"), (True, "adapter")):
        (tmp_path / "README.md").write_text(model_card(subject, is_adapter=is_adapter))
        header, body = card_of(tmp_path)
        assert header["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
        assert header["base_model_relation"] == relation
        assert header["license"] == "apache-2.0"
        assert "its text is in `LICENSE`" in body
        assert "The run made no evaluation" in body
    (tmp_path / "smollm2-135m-instruct").mkdir()
    (tmp_path / "smollm2-135m-instruct" / "LICENSE").touch()
    assert [path.name for path in license_files(config.model)] == ["LICENSE"]


def test_only_a_run_that_ended_leaves_a_trained_model(tmp_path: Path) -> None:
    run_from_config(configured(tmp_path / "left", *FINAL), until=1)
    with pytest.raises(Exception, match="refuses_green"):
        train(tmp_path / "failed", *FINAL, "reward.terms.task=0", "reward.terms.spread=0", "+reward.terms.refuses_green=1",
              "+reward.functions.refuses_green=support.graders:refuses_green")  # fmt: skip
    early = ("checkpoint.final_model=true", "checkpoint.best_metric=eval/mean_length", "checkpoint.early_stop_patience=1",
             "evaluation.every_n_steps=1", "optimization.learning_rate=1e-12", "optimization.total_training_steps=9")  # fmt: skip
    assert train(tmp_path / "early", *early).global_step == 2
    assert [(tmp_path / name / "model").exists() for name in ("left", "failed", "early")] == [False, False, True]
    assert "those after optimiser step 2" in (tmp_path / "early" / "model" / "README.md").read_text()


def test_a_longer_run_replaces_the_model_that_it_left(tmp_path: Path) -> None:
    train(tmp_path / "run", *FINAL)
    before = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    train(tmp_path / "run", *FINAL, "optimization.total_training_steps=3", resume_from=tmp_path / "run")
    after = tmp_path / "run" / "model"
    assert (after / "model.safetensors").read_bytes() != before
    saved = checkpoint_of(tmp_path / "run", 3) / "model" / "model.safetensors"
    assert (after / "model.safetensors").read_bytes() == saved.read_bytes()


def test_a_full_disk_leaves_the_old_folder_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run", *FINAL)
    before = (tmp_path / "run" / "model" / "README.md").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "_finish", full)
        with pytest.raises(
            CheckpointError, match=r"No space left on device.*; the checkpoints in .* are whole: .* export run="
        ):
            train(tmp_path / "run", *FINAL, "optimization.total_training_steps=3", resume_from=tmp_path / "run")
    assert (tmp_path / "run" / "model" / "README.md").read_bytes() == before
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_large_weights_are_cut_into_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "LARGEST_FILE", "100KB")
    model = tiny_llama(torch.float32)
    write_model_folder(tmp_path / "model", model, tiny_tokenizer(), "card", [])
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 1
    assert torch.equal(log_probs(AutoModelForCausalLM.from_pretrained(tmp_path / "model")), log_probs(model))


@pytest.mark.parametrize("lora", [pytest.param(False, marks=pytest.mark.slow), True], ids=["whole", "adapter"])
def test_an_exported_checkpoint_is_what_the_run_would_have_left(
    lora: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The adapter's base is taught by demonstrations first, which exporting takes from their cache."""
    warm = ("model.warm_start.enabled=true", "model.warm_start.steps=2", "model.warm_start.num_problems=8",
            f"model.warm_start.cache_dir={tmp_path / 'cache'}")  # fmt: skip
    extra = (*(LORA if lora else FINAL), *warm, "checkpoint.every_n_steps=1")
    train(tmp_path / "run", *extra)
    export_command([f"run={tmp_path / 'run'}", f"output={tmp_path / 'last'}"])
    names = ["adapter", "model"] if lora else ["model"]
    assert capsys.readouterr().out.split() == [str(tmp_path / "last" / name) for name in names]
    for name in names:
        files = sorted(path.name for path in (tmp_path / "run" / name).iterdir())
        assert files == sorted(path.name for path in (tmp_path / "last" / name).iterdir())
        for file in files:
            assert (tmp_path / "run" / name / file).read_bytes() == (tmp_path / "last" / name / file).read_bytes(), file
    export_command([f"run={tmp_path / 'run'}", "checkpoint=1", f"output={tmp_path / 'first'}"])
    assert "those after optimiser step 1" in (tmp_path / "first" / "model" / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (
            ["run=RUN", "output=OUT", "chekpoint=best"],
            2,
            "chekpoint=best: arguments are written name=value; did you mean checkpoint",
        ),
        (["run=RUN"], 2, "output= is missing"),
        (["run=nowhere", "output=OUT"], 2, "run=nowhere: is not the directory of a run"),
        (
            ["run=RUN", "output=OUT", "checkpoint=worst"],
            2,
            "checkpoint=worst: write checkpoint=last, checkpoint=best or the number",
        ),
        (["run=RUN", "output=RUN"], 2, "model is there already; name another folder"),
        (["run=RUN", "output=OUT", "checkpoint=7"], 2, "has no checkpoint of that step; it has those of steps 2"),
        (
            ["run=RUN", "output=OUT", "checkpoint=best"],
            2,
            "keeps no best checkpoint, for which checkpoint.best_metric must be set",
        ),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line(
    arguments: list[str], status: int, sentence: str, ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [text.replace("=RUN", f"={ended}").replace("=OUT", f"={ended.parent / 'out'}") for text in arguments]
    with pytest.raises(SystemExit) as left:
        export_command(given)
    assert left.value.code == status
    assert sentence in capsys.readouterr().err
    assert not (ended.parent / "out").exists()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that left its model."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    train(folder, *FINAL)
    return folder

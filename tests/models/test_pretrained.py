"""What is said where a model cannot be had or used, one sentence each and before its weights are read; and what is kept of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import TURN_END, TURN_TEMPLATE, refusal, save_checkpoint, small_tokenizer
from support.runs import metric_lines, train
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BloomConfig, BloomForCausalLM, T5Config

from maxent_grpo.config.model import Dtype, HfModelConfig
from maxent_grpo.models.build import TORCH_DTYPES, build_model
from maxent_grpo.models.declared_ends import declared_ends, turn_end
from maxent_grpo.models.tokenizer import CHAT_TEMPLATE


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama and a GPT-2 that nothing is wrong with."""
    folder = tmp_path_factory.mktemp("checkpoints")
    save_checkpoint(folder / "llama", "llama", generation={"eos_token_id": 2})
    save_checkpoint(folder / "gpt2", "gpt2")
    return folder


@pytest.fixture
def llama(checkpoints: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(checkpoints / "llama", tmp_path / "llama"))


def edit(file: Path, **changes: Any) -> None:
    """Change entries of a JSON file; None removes one."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_a_folder_without_a_model_says_what_it_is_instead(llama: Path, tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").startswith(
        "model.name=X: there is no such folder; name a folder as save_pretrained"
    )
    assert "is not a model folder, as it has no config.json" in refusal(tmp_path)
    shutil.move(llama, tmp_path / "run/checkpoints/step_2/model")
    assert refusal(tmp_path / "run").endswith(f"such as {tmp_path}/run/checkpoints/step_2/model")
    (tmp_path / "a.gguf").touch()
    assert "is a GGUF file, whose weights are quantised for inference" in refusal(tmp_path / "a.gguf")
    assert "its weights are a GGUF file" in refusal(tmp_path)


def test_pickled_weights_are_refused_and_never_read(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    assert refusal(llama) == (
        "model.name=X: its weights are pickles (pytorch_model.bin), which can run any code when they are read and are refused; "
        "save the model again with save_pretrained, which writes safetensors"
    )
    (llama / "pytorch_model.bin").unlink()
    assert "holds no weights (*.safetensors)" in refusal(llama)


def test_weights_that_are_cut_short_incomplete_or_of_other_sizes_are_refused(llama: Path) -> None:
    whole = (llama / "model.safetensors").read_bytes()
    (llama / "model.safetensors").write_bytes(whole[:-100])
    assert "its weights cannot be read (" in refusal(llama)
    (llama / "model.safetensors").write_bytes(whole)
    edit(llama / "config.json", num_hidden_layers=3)
    assert "its weights lack model.layers.2.input_layernorm.weight, " in refusal(llama)
    edit(llama / "config.json", num_hidden_layers=2, intermediate_size=64)
    assert "its weights cannot be read (" in refusal(llama)


def test_what_is_no_causal_language_model_is_refused_by_its_kind(llama: Path) -> None:
    described = {
        "BertForMaskedLM is no language model that writes text": BertConfig(architectures=["BertForMaskedLM"]),
        "T5ForConditionalGeneration is an encoder-decoder": T5Config(architectures=["T5ForConditionalGeneration"]),
        "Gemma3ForConditionalGeneration reads images or sound": AutoConfig.for_model(
            "gemma3", architectures=["Gemma3ForConditionalGeneration"]
        ),
        "LlamaForSequenceClassification is no language model that writes text": AutoConfig.for_model(
            "llama", architectures=["LlamaForSequenceClassification"]
        ),
    }
    for complaint, config in described.items():
        (llama / "config.json").write_text(json.dumps(config.to_dict()))
        assert complaint in refusal(llama)
    quantised = {"quant_method": "gptq", "bits": 4}
    (llama / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": quantised}))
    assert "quantised weights cannot be trained" in refusal(llama)
    (llama / "config.json").write_text(json.dumps({"model_type": "newest"}))
    assert "its architecture 'newest' is not known to the installed transformers" in refusal(llama)
    (llama / "config.json").write_text("{")
    assert "its config.json cannot be read" in refusal(llama)


def test_code_of_a_repository_runs_only_when_asked_for(llama: Path) -> None:
    """The code leaves a mark when it is run."""
    mark = llama / "was_run"
    (llama / "own.py").write_text(
        f"from pathlib import Path\nfrom transformers import LlamaConfig, LlamaForCausalLM\nPath({str(mark)!r}).touch()\n\n\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own-llama'\n\n\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    auto = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    edit(llama / "config.json", model_type="own-llama", architectures=["OwnForCausalLM"], auto_map=auto)
    assert "is Python code in its repository, which is not run unasked; read that code" in refusal(llama)
    assert not mark.exists()
    loaded = build_model(HfModelConfig(name=str(llama), trust_remote_code=True))
    assert mark.exists()
    assert type(loaded.model).__name__ == "OwnForCausalLM"


def test_tokenizers_that_do_not_fit_are_refused(llama: Path, tmp_path: Path) -> None:
    other = small_tokenizer()
    other.add_tokens(["<more>"])
    other.save_pretrained(tmp_path / "larger")
    assert refusal(llama, tokenizer=str(tmp_path / "larger")) == (
        f"model.tokenizer={tmp_path}/larger: the tokenizer has token ids up to 104, and the model's embedding has 104 rows; name "
        "the tokenizer that belongs to the model with model.tokenizer="
    )
    endless = small_tokenizer()
    endless.eos_token = None
    endless.save_pretrained(tmp_path / "endless")
    assert "its tokenizer has no end token (eos_token)" in refusal(llama, tokenizer=str(tmp_path / "endless"))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (llama / file).unlink()
    assert refusal(llama) == (
        "model.name=X: has no tokenizer; save it there with tokenizer.save_pretrained, or name another folder or hub id with "
        "model.tokenizer="
    )
    (llama / "tokenizer_config.json").write_text("{}")
    assert "it has no tokenizer that can be read (" in refusal(llama)
    small_tokenizer().save_pretrained(tmp_path / "whole")
    assert build_model(HfModelConfig(name=str(llama), tokenizer=str(tmp_path / "whole"))).tokenizer.eos_token_id == 2


def test_a_chat_template_of_ones_own_is_used_and_a_broken_one_refused(checkpoints: Path, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{% for m in messages %}[{{ m['content'] }}]{% endfor %}")
    loaded = build_model(HfModelConfig(name=str(checkpoints / "llama"), chat_template=str(file)))
    assert loaded.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "[hi]"
    file.write_text("{% for m in messages %}")
    assert f"model.chat_template={file}: does not render a user's turn (TemplateSyntaxError" in refusal(
        checkpoints / "llama", chat_template=str(file)
    )


def test_lengths_beyond_the_models_positions_are_refused_before_weights_are_read(llama: Path) -> None:
    (llama / "model.safetensors").write_bytes(b"")
    assert refusal(llama, positions=513) == (
        "generation.max_prompt_len + generation.max_completion_len = 513 tokens, and model.name=X has 512 positions; lower one "
        "of them, or name a model with a longer context"
    )


def test_an_attention_that_would_compute_something_else_is_refused(tmp_path: Path) -> None:
    gemma = save_checkpoint(tmp_path / "gemma", "gemma2")
    assert refusal(gemma) == (
        "model.attention=sdpa leaves out the capping of attention scores (attn_logit_softcapping=2) that model.name=X was "
        "trained with; write model.attention=eager"
    )
    bloom = bloom_checkpoint(tmp_path / "bloom")
    assert refusal(bloom) == "model.attention=sdpa: BloomForCausalLM does not have it; write model.attention=eager"


def bloom_checkpoint(folder: Path) -> Path:
    tokenizer = small_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "n_layer": 1, "n_head": 2, "initializer_range": 0.3}
        ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        BloomForCausalLM(BloomConfig(vocab_size=len(tokenizer), **sizes, **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_model_that_cannot_share_prompts_trains_without_and_says_why(tmp_path: Path) -> None:
    """Bloom takes its positions from the mask: one for every pair of positions is none of its."""
    bloom = bloom_checkpoint(tmp_path / "bloom")
    overrides = ("model=hf", f"model.name={bloom}", "model.attention=eager", "generation.allowed_tokens=[]")
    train(tmp_path / "run", *overrides)
    notes = (tmp_path / "run/run.log").read_text()
    assert "scoring.batching.share_prompts=true: every completion gets its own prompt: BloomForCausalLM" in notes
    assert "no exact evaluation: all answers of a problem are scored behind one prompt, and BloomForCausalLM" in notes
    assert all(line["generation/logprob_gap"] < 1e-4 for line in metric_lines(tmp_path / "run") if line["step"])


def test_dropout_is_off_and_said_to_be(checkpoints: Path) -> None:
    loaded = build_model(HfModelConfig(name=str(checkpoints / "gpt2")))
    assert loaded.notes[0] == (
        "model: dropout is off (resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1 in its configuration): completions are sampled "
        "without it as well"
    )
    ids = torch.arange(8, 20).unsqueeze(0)
    assert loaded.model.training
    with torch.no_grad():
        assert torch.equal(loaded.model(input_ids=ids).logits, loaded.model(input_ids=ids).logits)


def test_weights_are_read_in_the_asked_type_and_rotary_frequencies_are_not_rounded(checkpoints: Path) -> None:
    source, ids = checkpoints / "llama", torch.arange(8, 60).unsqueeze(0)
    for dtype in (Dtype.bfloat16, Dtype.float64):
        model = build_model(HfModelConfig(name=str(source), dtype=dtype)).model
        plain = AutoModelForCausalLM.from_pretrained(source, dtype=TORCH_DTYPES[dtype])
        assert {weight.dtype for weight in model.parameters()} == {TORCH_DTYPES[dtype]}
        with torch.no_grad():
            assert torch.equal(model(ids).logits, plain(ids).logits)


def test_end_tokens_are_those_of_tokenizer_generation_config_config_and_chat_template(llama: Path) -> None:
    edit(llama / "generation_config.json", eos_token_id=[2, 40], top_k=1, temperature=0.01, suppress_tokens=[9])
    # 41 is a character here, as in a config.json that is older than the tokenizer; 3 is a special token
    edit(llama / "config.json", eos_token_id=[2, 41, 3])
    loaded = build_model(HfModelConfig(name=str(llama)))
    assert loaded.model.generation_config is not None
    turn = loaded.tokenizer.convert_tokens_to_ids(TURN_END)
    assert loaded.model.generation_config.eos_token_id == sorted([2, 40, 3, turn])
    assert loaded.notes[0] == (
        f"model: a completion ends with <eos> (the tokenizer, generation_config.json, config.json); "
        f"{loaded.tokenizer.convert_ids_to_tokens(40)} (generation_config.json); "
        f"{loaded.tokenizer.convert_ids_to_tokens(3)} (config.json); {TURN_END} (the chat template)"
    )
    assert loaded.notes[1:] == (
        "model: saved with generation_config changed: do_sample=true, since it sets sampling controls",
    )
    loaded.model.save_pretrained(llama / "saved")
    saved = json.loads((llama / "saved/generation_config.json").read_text())
    assert (saved["top_k"], saved["temperature"], saved["do_sample"]) == (1, 0.01, True)


def test_an_architectures_default_end_token_is_not_believed(llama: Path) -> None:
    """Llama's default is 2, whatever token that is elsewhere."""
    for file in ("config.json", "generation_config.json"):
        edit(llama / file, eos_token_id=None)
    tokenizer = small_tokenizer(template=None)
    tokenizer.eos_token = TURN_END
    assert declared_ends(tokenizer, llama) == {tokenizer.eos_token_id: ["the tokenizer"]}


@pytest.mark.parametrize(
    ("template", "token"),
    [(TURN_TEMPLATE, TURN_END), (CHAT_TEMPLATE, "<eos>"), (None, None), ("{{ raise_exception('no') }}", None)],
)
def test_the_token_that_ends_a_chat_turn_is_found(template: str | None, token: str | None) -> None:
    tokenizer = small_tokenizer(template=template)
    assert turn_end(tokenizer) == (None if token is None else tokenizer.convert_tokens_to_ids(token))

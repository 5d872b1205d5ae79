import json
import pickle
from pathlib import Path

import pytest
import torch
from support.identical import assert_identical
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.checkpoint.weights import load_model_weights, save_model


def llama(tied: bool, seed: int, hidden_size: int = 16, num_layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=11,
            hidden_size=hidden_size,
            intermediate_size=24,
            num_hidden_layers=num_layers,
            num_attention_heads=2,
            tie_word_embeddings=tied,
        )
    )


def gpt2(seed: int) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2))


MODELS = {
    "llama tied": lambda seed: llama(True, seed),
    "llama untied": lambda seed: llama(False, seed),
    "llama bfloat16": lambda seed: llama(True, seed).bfloat16(),
    "gpt2": gpt2,
}


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<eos>": 1, **{letter: index for index, letter in enumerate("abcdefghi", start=2)}}
    inner = Tokenizer(WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters(remove_duplicate=False)}
    return {**parameters, **dict(model.named_buffers(remove_duplicate=False))}


@pytest.mark.parametrize("kind", MODELS)
def test_every_parameter_and_buffer_is_restored_bit_for_bit(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, kind: str
) -> None:
    source, target = MODELS[kind](1), MODELS[kind](2)
    with torch.no_grad():
        next(source.parameters())[0, :4] = torch.tensor([float("nan"), -0.0, float("inf"), 1e-40])
    save_model(tmp_path, source, tokenizer)
    assert not any(
        torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True) if a.ndim > 1
    )
    load_model_weights(target, tmp_path)
    assert_identical(tensors_of(source), tensors_of(target))
    tied = source.get_input_embeddings().weight is source.get_output_embeddings().weight
    assert (target.get_input_embeddings().weight is target.get_output_embeddings().weight) is tied


@pytest.mark.parametrize("kind", ["llama tied", "llama untied", "gpt2"])
def test_the_folder_is_a_standard_transformers_folder_without_pickles(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, kind: str
) -> None:
    source = MODELS[kind](1)
    save_model(tmp_path, source, tokenizer)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".json", ".safetensors"}
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_identical(tensors_of(source), tensors_of(loaded))
    ids = AutoTokenizer.from_pretrained(tmp_path)("b", add_special_tokens=False)["input_ids"]
    assert ids == [3]


def test_weights_in_several_files_are_restored(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    source, target = llama(False, 1), llama(False, 2)
    source.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    load_model_weights(target, tmp_path)
    assert_identical(tensors_of(source), tensors_of(target))
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match="cannot read the weights"):
        load_model_weights(target, tmp_path)


def test_buffers_that_the_model_saves_are_restored(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    source, target = llama(True, 1), llama(True, 2)
    for model, value in ((source, 5), (target, 0)):
        model.register_buffer("num_seen", torch.tensor(value))
    save_model(tmp_path, source, tokenizer)
    load_model_weights(target, tmp_path)
    assert dict(target.named_buffers())["num_seen"].item() == 5


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (lambda: llama(False, 2), "they lack lm_head.weight"),
        (
            lambda: llama(True, 2, hidden_size=8),
            "model.embed_tokens.weight is float32 [11, 16] there and float32 [11, 8] here",
        ),
        (lambda: llama(True, 2).double(), "is float32 [11, 16] there and float64 [11, 16] here"),
        (lambda: llama(True, 2, num_layers=1), "it has no model.layers.1.input_layernorm.weight"),
        (lambda: llama(True, 2, num_layers=3), "they lack model.layers.2.input_layernorm.weight"),
        (lambda: gpt2(2), "it has no model.embed_tokens.weight"),
    ],
)
def test_weights_of_another_model_are_refused_and_nothing_changes(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, target, sentence: str
) -> None:
    save_model(tmp_path, llama(True, 1), tokenizer)
    model = target()
    before = {name: tensor.clone() for name, tensor in tensors_of(model).items()}
    with pytest.raises(CheckpointError) as caught:
        load_model_weights(model, tmp_path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_identical(before, tensors_of(model))


def test_weights_that_differ_where_the_model_ties_them_are_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    save_model(tmp_path, llama(False, 1), tokenizer)
    with pytest.raises(CheckpointError, match=r"it ties .* which differ there"):
        load_model_weights(llama(True, 2), tmp_path)


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)


def test_pickled_weights_are_refused_and_never_run(tmp_path: Path) -> None:
    torch.save(Bomb(tmp_path / "ran"), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors; weights in other formats"):
        load_model_weights(llama(True, 1), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(CheckpointError, match="cannot read the weights"):
        load_model_weights(llama(True, 1), tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../pytorch_model.bin"}}))
    with pytest.raises(CheckpointError, match="cannot read the weights"):
        load_model_weights(llama(True, 1), tmp_path)
    assert not (tmp_path / "ran").exists()

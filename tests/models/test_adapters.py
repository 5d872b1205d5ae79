"""Low-rank adapters: what they leave alone, what they train, how they are kept, and what is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from support.tiny import tiny_gpt2, tiny_llama, tiny_mistral, tiny_qwen2
from torch import Tensor

from maxent_grpo.config.model import LoraConfig, TinyModelConfig, WarmStartConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.adapter import (
    adapter_digest,
    adapter_parameters,
    base_digest,
    has_adapter,
    merged_model,
    merged_state,
    parameters_text,
    save_adapter,
    without_adapter,
)
from maxent_grpo.models.build import build_model
from maxent_grpo.models.lora import attach_adapter, target_layers

ARCHITECTURES = {
    "llama": tiny_llama,
    "qwen2 tied": lambda dtype=torch.float64: tiny_qwen2(dtype, tie_word_embeddings=True),
    "mistral": tiny_mistral,
    "gpt2": tiny_gpt2,
}
IDS = torch.tensor([[5, 9, 30, 7, 12], [40, 3, 3, 8, 21]])


def attached(model: Any, seed: int = 3, **settings: Any) -> Any:
    """The model with an adapter."""
    config = TinyModelConfig(lora=LoraConfig(enabled=True, **settings))
    attach_adapter(model, config, seed)
    return model


def moved(model: Any, size: float = 0.1) -> Any:
    """The model with matrices that are far from adding nothing."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter_parameters(model).values():
            parameter.copy_(size * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return model


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_fresh_adapter_changes_no_bit_and_alone_is_trained(name: str) -> None:
    plain = ARCHITECTURES[name](torch.float32)
    before, digest, drawn = logits(plain), base_digest(plain), torch.get_rng_state()
    model = attached(plain)
    assert torch.equal(logits(model), before)
    assert base_digest(model) == digest
    assert torch.equal(torch.get_rng_state(), drawn)
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert trained == {id(parameter) for parameter in adapter_parameters(model).values()}
    model(IDS).logits.square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert len(gradients) == len(trained)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())
    assert all(bool(gradient.any()) == ("lora_B" in name) for name, gradient in gradients.items())  # A waits for B
    head = model.get_output_embeddings()
    assert not has_adapter(head)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_merged_weights_make_the_model_that_base_and_adapter_make(name: str) -> None:
    plain = ARCHITECTURES[name]()
    base = logits(plain)
    model = moved(attached(plain))
    together = logits(model)
    assert float((together - base).abs().max()) > 1
    assert float((logits(merged_model(model)) - together).abs().max()) < 1e-12
    assert torch.equal(logits(without_adapter(model)), base)
    assert torch.equal(logits(model), together)
    other = ARCHITECTURES[name]()
    other.load_state_dict(merged_state(model))
    assert float((logits(other) - together).abs().max()) < 1e-12


def test_a_merged_copy_shares_nothing_with_the_model_and_keeps_ties() -> None:
    model = moved(attached(tiny_llama(torch.bfloat16, tie_word_embeddings=True)))
    digest, state = base_digest(model), merged_state(model)
    assert state["lm_head.weight"] is state["model.embed_tokens.weight"]
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
    for tensor in state.values():
        tensor.zero_()
    assert base_digest(model) == digest


def test_a_merged_weight_is_the_exact_sum_rounded_once() -> None:
    model = moved(attached(tiny_llama(torch.bfloat16), rank=4, alpha=8.0))
    layer = model.model.layers[0].self_attn.q_proj
    update = layer.lora_B["default"].weight @ layer.lora_A["default"].weight * 2.0
    expected = (layer.base_layer.weight.float() + update).to(torch.bfloat16)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(merged_state(model)[name], expected)
    assert not torch.equal(expected, layer.base_layer.weight)


def test_the_scale_is_alpha_over_rank_or_over_its_root() -> None:
    for settings, scale in (
        ({}, 2.0),
        ({"rank": 4}, 2.0),
        ({"rank": 4, "alpha": 2.0}, 0.5),
        ({"rank": 16, "alpha": 8.0, "use_rslora": True}, 2.0),
    ):
        layer = attached(tiny_llama(), **settings).model.layers[0].self_attn.q_proj
        assert (layer.scaling["default"], layer.r["default"]) == (scale, settings.get("rank", 16))


def test_matrices_follow_the_seed_and_have_32_bits_at_least() -> None:
    digests = [adapter_digest(attached(tiny_llama(), seed)) for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]
    for dtype, kept in (
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        model = attached(tiny_llama(dtype))
        assert {parameter.dtype for parameter in adapter_parameters(model).values()} == {kept}
        assert model.dtype == dtype


def test_checkpointing_gives_the_adapter_the_same_gradient() -> None:
    gradients = []
    for checkpointing in (False, True):
        config = TinyModelConfig(
            hidden_size=32, num_heads=1, gradient_checkpointing=checkpointing, warm_start=WarmStartConfig(enabled=False),
            lora=LoraConfig(enabled=True),
        )  # fmt: skip
        model: Any = build_model(config).model
        attach_adapter(model, config, 0)
        moved(model)
        model.train()(IDS, use_cache=False).logits.square().mean().backward()
        gradients.append([parameter.grad for parameter in adapter_parameters(model).values()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert bool(plain.any())
        assert torch.equal(plain, recomputed)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_peft_reads_what_is_saved_and_it_is_read_back(name: str, tmp_path: Path) -> None:
    model = moved(attached(ARCHITECTURES[name](), rank=4))
    for folder in (tmp_path / "one", tmp_path / "two"):
        save_adapter(folder, model)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors"]
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    theirs = peft.PeftModel.from_pretrained(ARCHITECTURES[name](), str(tmp_path / "one"))
    assert torch.equal(logits(theirs), logits(model))
    again = attached(ARCHITECTURES[name](), adapter=str(tmp_path / "one"))
    assert torch.equal(logits(again), logits(model))
    assert adapter_digest(again) == adapter_digest(model)


def test_an_adapter_of_peft_itself_is_taken_with_its_own_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=["v_proj", "down_proj"], use_rslora=True, lora_dropout=0.1, rank_pattern={"v_proj": 2},
        init_lora_weights=False, task_type="CAUSAL_LM",
    )  # fmt: skip
    theirs = peft.get_peft_model(tiny_llama(torch.float32), settings)
    theirs.save_pretrained(str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="maxent_grpo"):
        model = attached(tiny_llama(torch.float32), adapter=str(tmp_path))
    assert torch.equal(logits(model), logits(theirs))
    assert "lora_dropout=0.1 is left out" in caplog.text
    layer = model.model.layers[0]
    assert (layer.self_attn.v_proj.r["default"], layer.mlp.down_proj.r["default"]) == (2, 3)
    assert model.train()(IDS).logits.equal(logits(model))
    save_adapter(tmp_path / "kept", model)
    kept = json.loads((tmp_path / "kept" / "adapter_config.json").read_text())
    assert (kept["r"], kept["lora_alpha"], kept["use_rslora"], kept["lora_dropout"]) == (3, 5, True, 0.0)


def saved(folder: Path, **changes: Any) -> str:
    """An adapter of rank 4 for q_proj and v_proj, its configuration changed."""
    save_adapter(folder, attached(tiny_llama(), rank=4, target_modules=["q_proj", "v_proj"]))
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(folder)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rank": 8}, "model.lora.rank=8: the adapter in model.lora.adapter={} has rank 4; an adapter keeps its own, so write "
         "model.lora.rank=null"),
        ({"alpha": 3.5}, "model.lora.alpha=3.5: the adapter in model.lora.adapter={} has alpha 8;"),
        ({"use_rslora": True}, "model.lora.use_rslora=true: the adapter in model.lora.adapter={} has use_rslora false;"),
        ({"target_modules": ["k_proj"]}, "model.lora.target_modules=[k_proj]: the adapter in model.lora.adapter={} has other "
         "layers, [q_proj,v_proj];"),
    ],
)  # fmt: skip
def test_settings_that_contradict_an_adapter_are_refused_with_both_values(
    settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "adapter")
    with pytest.raises(ConfigError) as refused:
        attached(tiny_llama(), adapter=folder, **settings)
    assert sentence.format(folder) in str(refused.value)
    agreeing = {"rank": 4, "alpha": 8.0, "use_rslora": False, "target_modules": ["v_proj", "q_proj"]}
    attached(tiny_llama(), adapter=folder, **agreeing)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"use_dora": True}, "asks for use_dora=True, which is not offered here"),
        ({"modules_to_save": ["lm_head"]}, "asks for modules_to_save=['lm_head']"),
        ({"bias": "all"}, "asks for bias=all"),
        ({"init_lora_weights": "pissa"}, "begun by init_lora_weights=pissa, which changes the base"),
        ({"peft_type": "IA3"}, "is not a LoRA adapter (its peft_type is IA3)"),
        ({"target_modules": ["nowhere"]}, "the adapter cannot be put into LlamaForCausalLM"),
        ({"target_modules": ["q_proj"]}, "which the model has not"),
        ({"target_modules": ["q_proj", "v_proj", "k_proj"]}, "it lacks base_model.model.model.layers.0.self_attn.k_proj.lora_A"),
        ({"r": 2}, "lora_A.weight is float64 [4, 64] there and float64 [2, 64] here"),
    ],
)  # fmt: skip
def test_an_adapter_that_is_not_plain_or_does_not_fit_is_refused(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "adapter", **changes)
    with pytest.raises(ConfigError) as refused:
        attached(tiny_llama(), adapter=folder)
    assert sentence in str(refused.value)


def test_pickles_and_folders_without_an_adapter_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").rename(tmp_path / "adapter" / "adapter_model.bin")
    with pytest.raises(ConfigError, match=r"holds no adapter_model\.safetensors; .*\(pickles\) are not read"):
        attached(tiny_llama(), adapter=folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"holds no readable adapter_config\.json"):
        attached(tiny_llama(), adapter=str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="is no folder here, and the hub does not give"):
        attached(tiny_llama(), adapter=str(tmp_path / "nowhere"))


TARGETS: dict[str, tuple[Callable[[], Any], list[str], str]] = {
    "misspelt": (tiny_llama, ["q_porj"], "no linear layer of LlamaForCausalLM is called q_porj; did you mean q_proj? There are "
                 "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head"),
    "no linear layer": (tiny_llama, ["embed_tokens"], "no linear layer of LlamaForCausalLM is called embed_tokens"),
    "tied head": (lambda: tiny_llama(tie_word_embeddings=True), ["lm_head"], "names lm_head, which shares its weights with the "
                  "token embedding"),
}  # fmt: skip


@pytest.mark.parametrize("case", TARGETS)
def test_layers_that_cannot_be_adapted_are_named(case: str) -> None:
    build, names, sentence = TARGETS[case]
    with pytest.raises(ConfigError) as refused:
        attached(build(), target_modules=names)
    assert sentence in str(refused.value)


def test_the_named_layers_are_adapted_and_no_others() -> None:
    assert target_layers(tiny_gpt2(), ["c_attn"]) == ["transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"]
    for names, kinds in ((["all-linear"], 7), (["q_proj"], 1), (["model.layers.1.mlp.up_proj", "lm_head"], None)):
        model = attached(tiny_llama(), target_modules=names)
        adapted = {name.split(".lora_")[0].removeprefix("base_model.model.") for name in adapter_parameters(model)}
        expected = {"model.layers.1.mlp.up_proj", "lm_head"} if kinds is None else None
        assert adapted == expected if expected else len(adapted) == 2 * (kinds or 0)


def test_a_rank_beyond_a_layers_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.lora\.rank=65 is more than .*q_proj has to adapt, which is 64 wide"):
        attached(tiny_llama(), rank=65)
    assert parameters_text(attached(tiny_llama(), rank=64, target_modules=["q_proj"])).endswith(
        "of which the adapter's 16,384 are trained"
    )

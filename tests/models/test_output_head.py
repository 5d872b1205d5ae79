"""Output heads of real architectures: found, told apart, and equal to the model's own logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    HyperCLOVAXConfig,
    LlamaConfig,
    MiniCPM3Config,
    NanoChatConfig,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
)

from maxent_grpo.models.output_head import head_input, output_head, possible_transforms
from maxent_grpo.objective.head_distribution import HeadTransform
from maxent_grpo.training.scoring.head_probe import head_problem_or_transform, separate_head

SIZES = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8}
KINDS: dict[str, tuple[Any, dict[str, Any], HeadTransform]] = {
    "llama": (LlamaConfig, {}, HeadTransform()),
    "llama-tied": (LlamaConfig, {"tie_word_embeddings": True}, HeadTransform()),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}, HeadTransform()),
    "qwen3": (Qwen3Config, {}, HeadTransform()),
    "gemma2": (Gemma2Config, {"final_logit_softcapping": 30.0}, HeadTransform(softcap=30.0)),
    "gemma3": (Gemma3TextConfig, {"final_logit_softcapping": 20.0}, HeadTransform(softcap=20.0)),
    "nanochat": (NanoChatConfig, {"final_logit_softcapping": 15.0}, HeadTransform(softcap=15.0)),
    "cohere": (CohereConfig, {"logit_scale": 0.25}, HeadTransform(scale=0.25)),
    "granite": (GraniteConfig, {"logits_scaling": 8.0}, HeadTransform(scale=1 / 8.0)),
    "hyperclovax": (HyperCLOVAXConfig, {"logits_scaling": 4.0}, HeadTransform(scale=4.0)),
    "minicpm3": (MiniCPM3Config, LATENT, HeadTransform()),
    "phi": (PhiConfig, {}, HeadTransform()),
}


def a_model(kind: str, **changes: Any) -> Any:
    if kind == "gpt2":
        config: Any = GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    else:
        build, own, _ = KINDS[kind]
        config = build(**(SIZES | own | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for name, parameter in model.named_parameters():
            if "bias" in name:
                nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("kind", [*KINDS, "gpt2"])
def test_the_head_and_what_is_done_to_its_products_are_found(kind: str) -> None:
    model = a_model(kind)
    transform = HeadTransform() if kind == "gpt2" else KINDS[kind][2]
    assert head_problem_or_transform(model) == transform
    head, ids = output_head(model), torch.arange(3, 12).unsqueeze(0)
    assert isinstance(head, nn.Linear)
    assert (head.bias is not None) == (kind == "phi")
    with torch.no_grad():
        own = model(input_ids=ids).logits
        with head_input(head) as caught:
            assert model(input_ids=ids).logits.shape == (1, 0, 40)
        found = transform.apply_(nn.functional.linear(caught[0], head.weight, head.bias))
        torch.testing.assert_close(found, own)
        assert torch.equal(model(input_ids=ids).logits, own)  # the hook is gone


def test_a_bound_that_small_logits_hardly_feel_is_noticed_all_the_same() -> None:
    model = a_model("gemma2")
    model.lm_head.weight.data.mul_(1e-3)
    assert head_problem_or_transform(model) == HeadTransform(softcap=30.0)
    model.config.final_logit_softcapping = None
    assert head_problem_or_transform(model) == HeadTransform()


def test_logits_that_the_configuration_does_not_explain_stay_the_models_own() -> None:
    class Shifted(type(a_model("llama"))):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            outputs = super().forward(*args, **kwargs)
            outputs.logits = outputs.logits + torch.arange(outputs.logits.shape[-1])
            return outputs

    model, notes = a_model("llama"), []
    model.__class__ = Shifted
    assert separate_head(model, notes.append) is None
    assert notes == [
        "scoring takes all logits of a slice from the model at once: the logits of Shifted are not those that its "
        "configuration makes one expect"
    ]


def test_heads_that_are_no_plain_matrix_stay_the_models_own() -> None:
    model = a_model("llama")

    class Quantised(nn.Linear):
        pass

    model.lm_head.__class__ = Quantised
    assert head_problem_or_transform(model) == f"its output head is a {__name__}.Quantised"
    model = a_model("llama")
    model.lm_head.weight = None
    assert head_problem_or_transform(model) == "the weight of its output head is a NoneType"
    assert head_problem_or_transform(nn.Linear(2, 2)) == "Linear names no output head"
    assert head_problem_or_transform(a_model("llama").half()) == "its output head has weights of type float16"
    compiled = a_model("llama")
    compiled.compile(backend="eager")
    assert head_problem_or_transform(compiled) == "LlamaForCausalLM is compiled together with its head"


def test_a_model_that_cannot_do_without_logits_keeps_them() -> None:
    class Needs(type(a_model("llama"))):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            outputs = super().forward(*args, **kwargs)
            outputs.logits[:, 0].sum()
            return outputs

    model = a_model("llama")
    model.__class__ = Needs
    assert str(head_problem_or_transform(model)).startswith("Needs does not run without its head (index 0 is out of")


def test_an_adapter_on_the_head_stays_in_the_model_and_one_elsewhere_does_not_matter() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    for target, transform in (("q_proj", HeadTransform()), ("lm_head", "its output head is a peft.Linear")):
        model = a_model("llama")
        inject_adapter_in_model(LoraConfig(r=2, target_modules=[target]), model, "default")
        assert head_problem_or_transform(model) == transform


def test_settings_of_the_logits_are_tried_in_every_meaning() -> None:
    assert possible_transforms(a_model("granite")) == [
        HeadTransform(1 / 8.0), HeadTransform(8.0), HeadTransform()
    ]  # fmt: skip

"""A decoding step with fewer operations gives the logits of the model's own forward, or is not taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from support.checkpoints import SIZES
from support.tiny import tiny_gpt2, tiny_llama, tiny_mistral, tiny_qwen2, tiny_tokenizer
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from maxent_grpo.models.attention import install_layouts
from maxent_grpo.training.generation import direct_pass as module
from maxent_grpo.training.generation import packed_products as packing
from maxent_grpo.training.generation import shared_prefix
from maxent_grpo.training.generation.direct_pass import STEPS_TO_PACK, direct_pass

PROMPTS = [[5, 9, 31, 7], [8, 6], [11]]
STEPS = 5
assert STEPS < STEPS_TO_PACK


def grouped_llama(dtype: torch.dtype = torch.float32) -> Any:
    return tiny_llama(dtype, num_attention_heads=4, num_key_value_heads=2, head_dim=16)


def tiny_qwen3(dtype: torch.dtype = torch.float32) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tiny_tokenizer()), **SIZES))
    return model.to(dtype).eval()


def adapted_llama(dtype: torch.dtype = torch.float32) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        adapter = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
        return inject_adapter_in_model(adapter, grouped_llama(dtype)).eval()


@torch.no_grad()
def logits(model: Any, shared: bool, room: int = STEPS) -> list[Tensor]:
    """Behind prompts with two completions each, token after token."""
    install_layouts(model)
    first, states = shared_prefix.run_prompts(model, PROMPTS, torch.device("cpu"))
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    completions = (states.shared if shared else states.copied)(rows, room)
    found = [first[rows]]
    for step in range(STEPS):
        found.append(completions.advance(model, (torch.arange(6) * 7 + step * 3) % 90 + 5, step))
    return found


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "copied"])
@pytest.mark.parametrize("build", [grouped_llama, tiny_qwen2, tiny_qwen3, adapted_llama])
def test_the_logits_are_those_of_the_models_own_forward(
    build: Callable[..., Any], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(torch.float32)
    assert direct_pass(model) is not None
    direct = logits(model, shared)
    monkeypatch.setattr(module, "KNOWN_LAYERS", ())
    assert direct_pass(model) is None
    for ours, theirs in zip(direct, logits(model, shared), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Matrices of every size are packed; grows by the size of each."""
    sizes: list[int] = []

    def reorder(weight: Tensor, rows: int) -> Tensor:
        sizes.append(weight.numel())
        return torch.ops.mkldnn._reorder_linear_weight(weight, rows)  # pyright: ignore

    monkeypatch.setattr(packing, "LEAST_NUMBERS", 0)
    monkeypatch.setattr(packing, "_reorder", reorder)
    return sizes


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "copied"])
@pytest.mark.parametrize("build", [grouped_llama, tiny_qwen2, tiny_qwen3, adapted_llama])
def test_packed_weights_give_the_same_logits(build: Callable[..., Any], shared: bool, packed: list[int]) -> None:
    model = build(torch.float32)
    plain = logits(model, shared)
    assert not packed
    for ours, theirs in zip(logits(model, shared, room=STEPS_TO_PACK), plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)
    assert len(packed) == 1 + (2 if build is adapted_llama else 4) * model.config.num_hidden_layers


def test_weights_are_packed_anew_for_every_call(packed: list[int]) -> None:
    model = tiny_qwen2(torch.float32)
    before = logits(model, shared=True, room=STEPS_TO_PACK)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.bias += 1.0
        model.model.layers[1].mlp.down_proj.weight *= 2.0
    after = logits(model, shared=True, room=STEPS_TO_PACK)
    assert not torch.allclose(after[-1], before[-1], atol=1e-3)
    torch.testing.assert_close(after[-1], logits(model, shared=True)[-1], atol=2e-5, rtol=0)


def test_small_matrices_are_not_packed_and_large_ones_are() -> None:
    small, large = torch.nn.Linear(128, 512), torch.nn.Linear(576, 192)
    assert packing.packed_products([small]) is None
    products = packing.packed_products([large, large])
    assert products is not None
    rows = torch.randn(3, 576)
    for found in products(rows):
        torch.testing.assert_close(found, large(rows), atol=1e-5, rtol=0)


def test_models_of_other_kinds_and_types_are_left_to_transformers() -> None:
    for model in (tiny_gpt2(torch.float32), tiny_mistral(torch.float32), tiny_qwen2(torch.float64)):
        assert direct_pass(model) is None


def test_a_hook_on_a_layer_is_called() -> None:
    model, seen = grouped_llama(), []
    model.model.layers[0].mlp.down_proj.register_forward_hook(lambda *_: seen.append(1))
    logits(model, shared=True, room=STEPS_TO_PACK)
    assert len(seen) == 1 + STEPS  # once for the prompts

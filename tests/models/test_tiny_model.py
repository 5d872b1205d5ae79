"""The default model: size, determinism, dtype, attention, refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from maxent_grpo.config.model import Attention, Dtype, ModelConfig, TinyModelConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.attention import LAID_OUT
from maxent_grpo.models.build import build_model
from maxent_grpo.models.weight_cache import state_digest

SMALL = TinyModelConfig(hidden_size=64, num_layers=2, num_heads=2, intermediate_size=96)


def logits(config: TinyModelConfig) -> torch.Tensor:
    model = build_model(config).model
    ids = torch.tensor([[1, 4, 60, 70, 5]])
    with torch.no_grad():
        return model(input_ids=ids).logits


def test_the_default_model_has_about_one_million_parameters_and_heads_of_32() -> None:
    loaded = build_model(TinyModelConfig())
    assert 800_000 <= sum(parameter.numel() for parameter in loaded.model.parameters()) <= 1_100_000
    assert loaded.model.config.hidden_size // loaded.model.config.num_attention_heads == 32
    assert loaded.model.config.vocab_size == len(loaded.tokenizer) == 103


def test_special_ids_agree_between_tokenizer_model_and_generation() -> None:
    loaded = build_model(SMALL)
    for settings in (loaded.model.config, loaded.model.generation_config):
        assert (settings.pad_token_id, settings.bos_token_id, settings.eos_token_id) == (0, 1, 2)
    assert loaded.tokenizer.eos_token_id == 2


def test_weights_are_a_function_of_the_init_seed_and_leave_random_state_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = state_digest(build_model(SMALL).model.state_dict())
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert state_digest(build_model(SMALL).model.state_dict()) == first
    assert state_digest(build_model(replace(SMALL, init_seed=1)).model.state_dict()) != first


def test_both_attention_implementations_compute_the_same() -> None:
    sdpa, eager = (replace(SMALL, dtype=Dtype.float64, attention=kind) for kind in (Attention.sdpa, Attention.eager))
    assert build_model(eager).model.config._attn_implementation == "eager"
    assert build_model(sdpa).model.config._attn_implementation == LAID_OUT
    # eager attention takes its softmax in float32, whatever the type of the weights
    torch.testing.assert_close(logits(sdpa), logits(eager), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_weights_have_the_asked_type_and_the_same_values_up_to_rounding(dtype: Dtype) -> None:
    model = build_model(replace(SMALL, dtype=dtype)).model
    exact = build_model(SMALL).model
    for (_, rounded), (name, parameter) in zip(model.named_parameters(), exact.named_parameters(), strict=True):
        assert rounded.dtype == getattr(torch, dtype), name
        assert torch.equal(rounded, parameter.to(rounded.dtype)), name


def test_gradient_checkpointing_leaves_the_gradients_as_they_are() -> None:
    gradients = []
    for checkpointing in (False, True):
        model = build_model(replace(SMALL, dtype=Dtype.float64, gradient_checkpointing=checkpointing)).model
        assert model.is_gradient_checkpointing == checkpointing
        assert model.training
        model(input_ids=torch.tensor([[1, 4, 60, 70, 5]]), use_cache=False).logits.square().sum().backward()
        gradients.append(
            torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
        )
    assert gradients[0].abs().sum() > 0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)


def test_heads_of_another_size_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hidden_size=128 over model\.num_heads=8 gives heads of 16"):
        build_model(TinyModelConfig(num_heads=8))


def test_a_model_option_without_a_builder_is_refused() -> None:
    @dataclass(slots=True)
    class UnknownConfig(ModelConfig):
        pass

    with pytest.raises(ConfigError, match="UnknownConfig"):
        build_model(UnknownConfig())

"""Complaints about adapters: bases that drift, references that silently do nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import configured, inside_run
from support.tiny import tiny_llama

from maxent_grpo.config.model import LoraConfig, TinyModelConfig
from maxent_grpo.errors import ConfigError
from maxent_grpo.models.adapter import adapter_parameters, base_digest, merged_state
from maxent_grpo.models.lora import attach_adapter
from maxent_grpo.telemetry.inert import inert_settings
from maxent_grpo.training.loop import run_training


def test_a_thousand_syncs_leave_the_base_weights_bit_equal() -> None:
    """huggingface/trl#6688, #3466: merging into bfloat16 weights and taking it off again lets them drift, by up to 0.015."""
    model = tiny_llama(torch.bfloat16, num_hidden_layers=1)
    attach_adapter(model, TinyModelConfig(lora=LoraConfig(enabled=True, target_modules=["up_proj"])), seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter_parameters(model).values():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    before, first = base_digest(model), merged_state(model)
    for _ in range(999):
        last = merged_state(model)
    assert base_digest(model) == before
    assert all(torch.equal(first[name], last[name]) for name in first)
    layer: Any = model.model.layers[0].mlp.up_proj
    there_and_back = layer.base_layer.weight.clone()
    for _ in range(1000):
        update = layer.get_delta_weight("default").to(torch.bfloat16)
        there_and_back += update
        there_and_back -= update
    assert not torch.equal(there_and_back, layer.base_layer.weight)  # what the complaint is about


SYNC = ("evaluation.enabled=false", "scoring.reference_sync.every_n_steps=1")


def test_a_moving_reference_without_a_coefficient_is_said_to_do_nothing(tmp_path: Path) -> None:
    """huggingface/trl PR #4912: synchronising a reference that no coefficient uses was accepted in silence."""
    config = configured(tmp_path / "run", *SYNC, "scoring=dr_grpo")
    assert (
        "scoring.reference_sync.every_n_steps=1: no coefficient pulls towards a reference, so that none is kept"
        in inert_settings(config)
    )


def test_a_moving_reference_under_an_adapter_works_or_is_refused(tmp_path: Path) -> None:
    """huggingface/trl#6975: with an adapter the reference never moved, and nothing said so."""
    moving = (*SYNC, "model.lora.enabled=true", "scoring.kl_beta=0.5")
    with pytest.raises(
        ConfigError, match=r"scoring\.reference_sync\.mixing=0\.6 with model\.lora\.enabled=true: a mixture"
    ):
        configured(tmp_path / "refused", *moving, "scoring.reference_sync.mixing=0.6")

    def body(ctx: Any, resources: Any, parts: Any) -> bool:
        run_training(ctx, resources, parts)
        policy, reference = (adapter_parameters(m) for m in (ctx.runtime.model, ctx.runtime.reference_model))
        assert all(bool(value.any()) for value in reference.values())
        return all(torch.equal(policy[name], reference[name]) for name in policy)

    assert inside_run(configured(tmp_path / "works", *moving, "scoring.reference_sync.mixing=1"), body)

"""Runs that train an adapter: one base, an exact reference, checkpoints without the base, resumed bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from support.identical import assert_identical
from support.runs import (
    checkpoint_of,
    completion_lines,
    configured,
    inside_run,
    metric_lines,
    state_of,
    train,
    weights_of,
)
from torch import nn

from maxent_grpo.config.load import check_object
from maxent_grpo.errors import CheckpointError
from maxent_grpo.models.adapter import adapter_digest, adapter_parameters, base_digest, base_state
from maxent_grpo.models.build import build_model
from maxent_grpo.models.lora import attach_adapter
from maxent_grpo.training.loop import run_training
from maxent_grpo.training.preview.run import preview
from maxent_grpo.training.preview.sight import outline
from maxent_grpo.training.preview.sizes import model_shape, parameter_counts

LORA = ("evaluation.enabled=false", "scoring.kl_beta=0.5", "model.lora.enabled=true")
THREE = (
    *LORA, "optimization.total_training_steps=3", "optimization.num_iterations=2", "checkpoint.every_n_steps=1",
    "checkpoint.keep_last=0",
)  # fmt: skip


def memory(*models: nn.Module) -> int:
    """Bytes of all weights, those that several models share once."""
    tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter of a finished run."""
    folder = tmp_path_factory.mktemp("adapter")
    train(folder / "run", *LORA)
    return checkpoint_of(folder / "run") / "adapter"


def test_only_the_adapter_is_in_the_optimiser_and_the_base_keeps_its_bits(tmp_path: Path) -> None:
    def body(ctx: Any, resources: Any, parts: Any) -> None:
        model = ctx.runtime.model
        before, adapter_before = base_digest(model), adapter_digest(model)
        groups = ctx.optimization.handles.base_optimizer.param_groups
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        assert trained == {id(parameter) for parameter in adapter_parameters(model).values()}
        run_training(ctx, resources, parts)
        assert base_digest(model) == before
        assert adapter_digest(model) != adapter_before
        assert all(parameter.grad is None for parameter in model.parameters() if id(parameter) not in trained)
        assert {id(parameter) for parameter in ctx.optimization.handles.base_optimizer.state} == trained

    inside_run(configured(tmp_path / "run", *LORA), body)


@pytest.mark.parametrize("start", ["the base", "an adapter", "an adapter, the reference moving"])
def test_the_reference_shares_the_base_and_the_divergence_starts_at_exactly_zero(
    start: str, tmp_path: Path, adapter: Path
) -> None:
    extra = () if start == "the base" else (f"model.lora.adapter={adapter}",)
    moves = "moving" in start
    extra += ("scoring.reference_sync.every_n_steps=1", "scoring.reference_sync.mixing=1") if moves else ()
    ids = torch.tensor([[5, 9, 30, 7]])

    def body(ctx: Any, resources: Any, parts: Any) -> None:
        policy, reference = ctx.runtime.model, ctx.runtime.reference_model
        size = sum(parameter.nbytes for parameter in adapter_parameters(policy).values())
        buffers = sum(buffer.nbytes for buffer in reference.buffers())
        own = 0 if start == "the base" else size + buffers
        assert memory(policy, reference) == memory(policy) + own
        assert not any(parameter.requires_grad for parameter in reference.parameters())
        begun = reference(ids).logits
        assert torch.equal(begun, policy(ids).logits)
        run_training(ctx, resources, parts)
        assert not torch.equal(policy(ids).logits, begun)
        assert torch.equal(reference(ids).logits, policy(ids).logits if moves else begun)

    inside_run(configured(tmp_path / "run", *LORA, *extra), body)
    divergences = [line["policy/kl_to_reference"] for line in metric_lines(tmp_path / "run")]
    assert divergences[0] == 0.0
    assert (divergences[1] == 0.0) == moves


def test_the_divergence_under_an_adapter_is_that_to_the_base(tmp_path: Path) -> None:
    """The second step's log-probs of the reference are those of the base by itself, on the same completions."""
    train(tmp_path / "adapter", *LORA)
    train(tmp_path / "frozen", *LORA[:-1], "optimization.learning_rate=1e-30")
    with_adapter, frozen = (metric_lines(tmp_path / name)[0] for name in ("adapter", "frozen"))
    for name in ("reference/logp_mean", "policy/behaviour_logp_mean", "loss/policy"):
        assert with_adapter[name] == frozen[name]
    assert completion_lines(tmp_path / "adapter")[0] == completion_lines(tmp_path / "frozen")[0]


def test_slices_assembled_ahead_train_the_same(tmp_path: Path) -> None:
    sliced = (*LORA, "scoring.batching.score_slice=4")
    train(tmp_path / "plain", *sliced)
    train(tmp_path / "ahead", *sliced, "scoring.batching.slice_prefetch=2")
    assert metric_lines(tmp_path / "plain") == metric_lines(tmp_path / "ahead")


def test_a_failing_reference_leaves_the_policy_with_its_adapter(tmp_path: Path, adapter: Path) -> None:
    ids = torch.tensor([[5, 9, 30, 7]])

    def fail(*_: Any) -> None:
        raise RuntimeError("in the middle of scoring")

    def body(ctx: Any, resources: Any, parts: Any) -> None:
        before = ctx.runtime.model(ids).logits
        layers = ctx.runtime.reference_model.model.layers
        layers[0].mlp.register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle of scoring"):
            run_training(ctx, resources, parts)
        assert torch.equal(ctx.runtime.model(ids).logits, before)
        assert ctx.runtime.model.model.layers[0].self_attn.q_proj.disable_adapters is False

    inside_run(configured(tmp_path / "run", *LORA, f"model.lora.adapter={adapter}"), body)


SCENARIOS = {
    "fresh": (),
    "moving reference": ("scoring.reference_sync.every_n_steps=1", "scoring.reference_sync.mixing=1"),
    "bfloat16": ("model.dtype=bfloat16",),
}


@pytest.mark.parametrize(
    "name",
    [
        "from an adapter",
        "moving reference",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fresh", "bfloat16")),
    ],
)
def test_a_resumed_run_is_the_same_run(name: str, tmp_path: Path, adapter: Path) -> None:
    extra = (*THREE, *SCENARIOS.get(name, (f"model.lora.adapter={adapter}",)))
    train(tmp_path / "straight", *extra)
    resumed = checkpoint_of(tmp_path / "straight", 1)
    train(tmp_path / "resumed", *extra, resume_from=resumed)
    assert metric_lines(tmp_path / "resumed") == metric_lines(tmp_path / "straight")
    for step in (2, 3):
        ends = [checkpoint_of(tmp_path / run, step) for run in ("straight", "resumed")]
        assert_identical(*[weights_of(end) for end in ends])
        assert_identical(*[state_of(end).states for end in ends])


def test_a_checkpoint_holds_the_adapter_and_not_the_base(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", *LORA)
    train(tmp_path / "run", *LORA)
    checkpoint = checkpoint_of(tmp_path / "run")
    assert sorted(path.name for path in checkpoint.iterdir()) == ["adapter", "manifest.json", "state"]
    base = build_model(config.model).model
    stored = sum(path.stat().st_size for path in checkpoint.rglob("*.safetensors"))
    trained = sum(tensor.nbytes for tensor in weights_of(checkpoint).values())
    assert trained * 3 < stored < trained * 3 + 30_000
    loaded = peft.PeftModel.from_pretrained(base, str(checkpoint / "adapter"))
    names = {name.replace(".default", "") for name, _ in loaded.named_parameters() if ".lora_" in name}
    assert names == set(weights_of(checkpoint))


def test_another_base_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    train(tmp_path / "first", *LORA)
    config = configured(
        tmp_path / "second", *LORA, "optimization.total_training_steps=3", resume_from=tmp_path / "first"
    )

    def other(*_: Any, **__: Any) -> Any:
        loaded = build_model(config.model)
        with torch.no_grad():
            loaded.model.get_input_embeddings().weight[0, 0] += 1e-3  # pyright: ignore
        return loaded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maxent_grpo.training.setup.build_model", other)
        with pytest.raises(
            CheckpointError, match="the checkpoint's adapter was trained with other base weights: SHA-256"
        ):
            inside_run(config, lambda *_: None)


def test_the_starting_adapter_may_move_but_not_change(tmp_path: Path, adapter: Path) -> None:
    shutil.copytree(adapter, tmp_path / "start")
    train(tmp_path / "first", *LORA, f"model.lora.adapter={tmp_path / 'start'}")
    longer = (*LORA, "optimization.total_training_steps=3")
    moved = train(tmp_path / "moved", *longer, f"model.lora.adapter={adapter}", resume_from=tmp_path / "first")
    assert moved.global_step == 3
    file = tmp_path / "start" / "adapter_model.safetensors"
    shutil.copyfile(checkpoint_of(tmp_path / "first") / "adapter" / file.name, file)
    with pytest.raises(CheckpointError, match="trained with other starting adapter"):
        train(tmp_path / "no", *longer, f"model.lora.adapter={tmp_path / 'start'}", resume_from=tmp_path / "first")


def test_an_adapter_and_whole_weights_do_not_continue_each_other(tmp_path: Path) -> None:
    train(tmp_path / "adapter", *LORA)
    with pytest.raises(CheckpointError, match=r"model\.lora\.enabled: True in the checkpoint, False now"):
        train(tmp_path / "whole", *LORA[:-1], resume_from=tmp_path / "adapter")


def test_a_damaged_adapter_in_a_checkpoint_is_named(tmp_path: Path) -> None:
    train(tmp_path / "run", *LORA)
    file = checkpoint_of(tmp_path / "run") / "adapter" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(CheckpointError, match=r"adapter/adapter_model\.safetensors has another checksum"):
        train(tmp_path / "again", *LORA, resume_from=file.parents[1])


def test_a_dry_run_counts_gradients_and_moments_of_the_adapter_only(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", *LORA)
    model = outline(config).model
    counts, shape = parameter_counts(model), model_shape(model)
    assert sum(counts.values()) == model.num_parameters()
    assert counts["adapter"] * 4 == shape.adapter == shape.trained
    assert shape.weights == sum(tensor.nbytes for tensor in base_state(model).values())
    text = preview(config)
    assert "of which the adapter's" in text
    assert "reference copy" not in text
    config.scoring.reference_sync.every_n_steps, config.scoring.reference_sync.mixing = 1, 1.0
    assert "reference adapter" in preview(check_object(config))
    assert not (tmp_path / "run").exists()


def test_what_the_matrices_keep_for_the_backward_pass_is_counted_exactly(tmp_path: Path) -> None:
    """In float32 the products A x; on a base in bfloat16 also each layer's input, in float32."""
    ids = torch.tensor([[5, 9, 30, 7, 12, 40, 3, 21]])
    for dtype in ("float32", "bfloat16"):
        config = configured(tmp_path / "run", *LORA, f"model.dtype={dtype}", "model.num_layers=2")
        kept = []
        for enabled in (False, True):
            config.model.lora.enabled = enabled
            model: Any = build_model(config.model).model
            attach_adapter(model, config.model, 0)
            kept.append(saved_shapes(model, ids))
        shape = model_shape(outline(config).model)
        added = {form: count - kept[0].get(form, 0) for form, count in kept[1].items() if count > kept[0].get(form, 0)}
        wide = {form: count for form, count in added.items() if form[2] is torch.float32}
        more = sum(count * rows * columns * 4 for (rows, columns, _), count in wide.items())
        # the first norm, in float32, need not keep its input, since nothing below it is trained
        spared = ids.shape[1] * shape.hidden * 4 if dtype == "bfloat16" else 0
        assert more + spared == shape.adapter_kept * ids.shape[1] * shape.layers


def saved_shapes(model: Any, ids: torch.Tensor) -> dict[tuple[int, int, torch.dtype], int]:
    """How many tensors of rows by columns, each with a memory of its own, autograd keeps of a pass, weights aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            found.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(ids, use_cache=False)
    forms = [
        (tensor.numel() // tensor.shape[-1], tensor.shape[-1], tensor.dtype)
        for tensor in found.values()
        if tensor.dim() > 1
    ]
    return {form: forms.count(form) for form in forms}

"""Weights in bfloat16 that are trained as float32 numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.runs import checkpoint_of, configured, inside_run, metric_lines, state_of, train, weights_of
from support.same_run import assert_same_run
from torch import nn

from maxent_grpo.errors import CheckpointError
from maxent_grpo.training.master_weights import MASTERS, MasterAdamW, live_parameters, trained_parameters
from maxent_grpo.training.step import train_step

BFLOAT16 = ("model.dtype=bfloat16", "scoring=maxent", "evaluation.enabled=false", "optimization.learning_rate=1e-5")


def weight() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, -0.5, 3.0, 2.0], dtype=torch.bfloat16))


def test_steps_too_small_for_the_type_add_up() -> None:
    """200 steps of a millionth of the weight: 2e-4 in all, a 40th of what a bfloat16 beside 1 can tell."""
    rounded, kept = weight(), weight()
    settings = {"lr": 1e-6, "betas": (0.9, 0.95), "weight_decay": 0.0}
    plain, master = torch.optim.AdamW([rounded], **settings), MasterAdamW([kept], **settings)
    for _ in range(200):
        for parameter in (rounded, kept):
            parameter.grad = torch.ones_like(parameter)
        master.collect()
        plain.step()
        master.step()
    assert torch.equal(rounded, weight()), "without a copy every step is rounded away"
    [trained] = trained_parameters(master)
    # each step is rounded to the 2.4e-7 that float32 has beside 3
    torch.testing.assert_close(trained, weight().float() - 2e-4, atol=3e-5, rtol=0)
    assert torch.equal(kept, trained.bfloat16()), "the weights are the copy, rounded"
    for _ in range(4000):
        kept.grad = torch.ones_like(kept)
        master.collect()
        master.step()
    assert torch.equal(kept, trained.bfloat16())
    assert (kept != weight()).tolist() == [True, True, False, True], "beside 3 the next number is 1.6e-2 away"


def test_gradients_are_added_up_in_32_bits() -> None:
    parameter = weight()
    optimizer = MasterAdamW([parameter], lr=1.0)
    for part in (256.0, 1.0, 1.0, 1.0):  # 257 is no bfloat16
        parameter.grad = torch.full_like(parameter, part)
        optimizer.collect()
        assert parameter.grad is None
    [trained] = trained_parameters(optimizer)
    assert trained.grad is not None
    assert trained.grad.tolist() == [259.0] * 4
    assert torch.tensor(256.0, dtype=torch.bfloat16) + 1 == 256
    optimizer.zero_grad()
    assert trained.grad is None


def test_weights_with_enough_bits_are_trained_themselves() -> None:
    wide, narrow = nn.Parameter(torch.ones(2)), weight()
    optimizer = MasterAdamW([wide, narrow], lr=0.1)
    assert trained_parameters(optimizer)[0] is wide
    assert [parameter is other for parameter, other in zip(live_parameters(optimizer), (wide, narrow), strict=True)]
    assert len(optimizer.state_dict()[MASTERS]) == 1


def test_a_state_without_copies_is_refused() -> None:
    state = torch.optim.AdamW([weight()]).state_dict()
    with pytest.raises(CheckpointError, match="has float32 copies of 0 weights and this run trains 1"):
        MasterAdamW([weight()]).load_state_dict(state)


def test_a_run_in_bfloat16_learns_by_steps_that_are_too_small_for_it(tmp_path: Path) -> None:
    train(tmp_path / "run", *BFLOAT16, "optimization.total_training_steps=3")
    checkpoint = checkpoint_of(tmp_path / "run")
    weights, masters = weights_of(checkpoint), state_of(checkpoint).states["optimizer"][MASTERS]
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in masters} == {torch.float32}
    rounded = [master.bfloat16() for master in masters]
    assert len(rounded) == len(weights)
    for name, tensor in weights.items():
        assert any(torch.equal(tensor, other) for other in rounded), name
    between = sum(int((master != other.float()).sum()) for master, other in zip(masters, rounded, strict=True))
    assert between > 1000, "the copies hold what the weights cannot"
    assert all(line["optim/gradient_norm"] > 0 for line in metric_lines(tmp_path / "run") if line["step"] > 0)


def test_a_resumed_run_in_bfloat16_is_the_run(tmp_path: Path) -> None:
    length = "optimization.total_training_steps=4"
    train(tmp_path / "whole", *BFLOAT16, length, "checkpoint.every_n_steps=2")
    half = checkpoint_of(tmp_path / "whole", 2)
    train(tmp_path / "rest", *BFLOAT16, length, "checkpoint.every_n_steps=2", resume_from=half)
    assert_same_run(tmp_path / "whole", tmp_path / "rest")


def test_slices_do_not_change_the_gradient(tmp_path: Path) -> None:
    """Two slices give the gradient of one, up to the rounding of each slice's own."""
    norms = []
    for size in (0, 8):
        config = configured(tmp_path / str(size), *BFLOAT16, f"scoring.batching.score_slice={size}")

        def body(ctx, resources, parts):  # type: ignore[no-untyped-def]
            from maxent_grpo.training.experience import ready_to_train, sample_rollout
            from maxent_grpo.training.scoring.batch import RowRange
            from maxent_grpo.training.types.runtime import StepBatchInfo

            rows = [ctx.runtime.train_loader.dataset[n] for n in range(4)]
            sampled = sample_rollout(ctx, resources, StepBatchInfo(0, 0, rows), parts.rows, parts.clock, 0)
            experience = ready_to_train(ctx, resources, sampled, parts.clock, 0)
            report = train_step(ctx, resources, experience, RowRange(0, 4), parts.controller, parts.clock, step=1)
            assert all(parameter.grad is None for parameter in ctx.runtime.model.parameters())
            return report.update.gradient_norm

        norms.append(inside_run(config, body))
    assert norms[0] == pytest.approx(norms[1], rel=0.02)

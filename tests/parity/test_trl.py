"""The same numbers as TRL 1.16.0: loss and gradient of every parameter, advantages, and a whole step of its trainer."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from support.parity import Given, Outcome, advantages_of, gradients, method_settings, step_outcome, token_logp
from support.parity_case import ADVANTAGES, BATCH, LOSSES, Options, assert_same, differ, distant_logp
from support.trl_peer import generation_inputs, micro_batches, trainer_for, window_outcome
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback

from maxent_grpo.training.types.choices import RewardNormalization

KL: dict[str, tuple[Options, Options]] = {
    "no_kl": ({"beta": 0.0}, {}),
    "kl": ({"beta": 0.1, "use_bias_correction_kl": False}, {"scoring.kl_beta": 0.1}),
    "kl_weighted": ({"beta": 0.1}, {"scoring.kl_beta": 0.1, "scoring.kl_estimator": "k3_is"}),
}

VARIANTS: dict[str, tuple[str, Options, Options]] = {
    "asymmetric_clip": (
        "grpo",
        {"epsilon": 0.05, "epsilon_high": 0.5},
        {"scoring.clipping.clip_range": 0.05, "scoring.clipping.clip_range_high": 0.5},
    ),
    "two_sided_clip": ("dapo", {"delta": 1.3}, {"scoring.clipping.clip_delta": 1.3}),
    "gate_steepness": (
        "sapo",
        {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 5.0},
        {"scoring.surrogate.positive_temperature": 2.0, "scoring.surrogate.negative_temperature": 5.0},
    ),
    "entropy_bonus": ("dapo", {"entropy_coef": 0.03}, {"scoring.entropy_coef": 0.03}),
    "uncertain_tokens": (
        "dapo",
        {"top_entropy_quantile": 0.2},
        {"scoring.token_selection.kind": "high_entropy", "scoring.token_selection.entropy_quantile": 0.8},
    ),
    "padded_rows": ("grpo", {}, {"scoring.trl_reference_scoring": True}),
    "temperature": ("dapo", {"temperature": 0.6}, {}),
} | {
    f"truncated_masked_{loss}": (
        loss,
        {"mask_truncated_completions": True, "beta": 0.1},
        {"scoring.truncation": "mask_loss", "scoring.kl_beta": 0.1, "scoring.kl_estimator": "k3_is"},
    )
    for loss in LOSSES
}


def outcomes(
    policy: PreTrainedModel,
    folder: Path,
    old_logp: Tensor,
    loss: str,
    theirs: Options,
    ours: Options,
    *,
    accumulation: int = 1,
) -> tuple[Outcome, Outcome]:
    """Our step and TRL's on the same tokens, behaviour log-probabilities and advantages."""
    options, name, changes = LOSSES[loss]
    trainer = trainer_for(policy, BATCH, folder, **{**options, **theirs, "gradient_accumulation_steps": accumulation})
    inputs = generation_inputs(trainer, BATCH) | {"advantages": ADVANTAGES, "old_per_token_logps": old_logp}
    settings = method_settings(name, {**changes, **ours}, max_length=BATCH.max_length)
    reference = None
    if settings.kl_beta > 0:
        reference = token_logp(trainer.ref_model, BATCH)
        known = inputs["completion_mask"].bool()
        torch.testing.assert_close(reference[known], inputs["ref_per_token_logps"][known], atol=1e-5, rtol=1e-5)
    given = Given(ADVANTAGES, old_logp, reference)
    return (
        step_outcome(policy, BATCH, settings, given, temperature=trainer.temperature),
        window_outcome(trainer, micro_batches(inputs, accumulation)),
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kl", KL)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_every_gradient_are_those_of_trl(
    policy: PreTrainedModel, folder: Path, old_logp: Tensor, loss: str, kl: str, level: str
) -> None:
    theirs, ours = KL[kl]
    theirs = {**theirs, "importance_sampling_level": level}
    assert_same(*outcomes(policy, folder, old_logp, loss, theirs, {**ours, "scoring.ratio_level": level}))


@pytest.mark.parametrize("variant", VARIANTS)
def test_further_options_mean_the_same(policy: PreTrainedModel, folder: Path, old_logp: Tensor, variant: str) -> None:
    loss, theirs, ours = VARIANTS[variant]
    assert_same(*outcomes(policy, folder, old_logp, loss, theirs, ours))


def test_gspo_is_trls_grpo_loss_with_sequence_ratios_and_its_narrow_clip(policy: PreTrainedModel, folder: Path) -> None:
    near = token_logp(policy, BATCH)
    near = near + 2e-3 * torch.randn(near.shape, generator=torch.Generator().manual_seed(6))
    options = {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
    trainer = trainer_for(policy, BATCH, folder, **options)
    inputs = generation_inputs(trainer, BATCH) | {"advantages": ADVANTAGES, "old_per_token_logps": near}
    settings = method_settings("gspo", {}, max_length=BATCH.max_length)
    assert_same(step_outcome(policy, BATCH, settings, Given(ADVANTAGES, near)), window_outcome(trainer, [inputs]))


@pytest.mark.parametrize("loss", LOSSES)
def test_an_accumulated_step_of_trl_is_ours_in_slices_of_any_size(
    policy: PreTrainedModel, folder: Path, old_logp: Tensor, loss: str
) -> None:
    accumulation = 4
    # bnpo alone depends on the cut: there the slices are TRL's micro-batches
    size = len(BATCH.completions) // accumulation if loss == "bnpo" else 3
    ours = {"scoring.batching.score_slice": size}
    assert_same(*outcomes(policy, folder, old_logp, loss, {}, ours, accumulation=accumulation))


def test_the_batch_tells_every_case_apart(policy: PreTrainedModel, folder: Path, old_logp: Tensor) -> None:
    cases: dict[str, tuple[str, Options]] = {
        f"{loss} {kl} {level}": (loss, {**KL[kl][1], "scoring.ratio_level": level})
        for loss in LOSSES
        for kl in KL
        for level in ("token", "sequence")
    } | {name: (loss, ours) for name, (loss, _, ours) in VARIANTS.items() if ours and name != "padded_rows"}
    reference = token_logp(policy, BATCH) - 0.3 * torch.rand(old_logp.shape, generator=torch.Generator().manual_seed(3))
    found: dict[str, Tensor] = {}
    for case, (loss, changes) in cases.items():
        settings = method_settings(LOSSES[loss][1], {**LOSSES[loss][2], **changes}, max_length=BATCH.max_length)
        outcome = step_outcome(policy, BATCH, settings, Given(ADVANTAGES, old_logp, reference))
        found[case] = torch.cat([value.flatten() for value in outcome.gradients.values()])
    for one, other in combinations(found, 2):
        gap = float((found[one] - found[other]).norm() / found[one].norm())
        assert gap > 1e-3, (one, other)  # a hundred times the tolerance


class GradientsBeforeTheUpdate(TrainerCallback):
    """Keeps what a step of the trainer has accumulated."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **live: Any) -> None:
        self.kept = gradients(live["model"])


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo"])
def test_a_whole_step_of_trls_trainer_has_our_gradient(policy: PreTrainedModel, folder: Path, loss: str) -> None:
    options, name, changes = LOSSES[loss]
    rewards = {"right": [1.0, 0.0, 0.0, 1.0, 0.25, 0.0, None, 1.0], "short": [0.5, 1.0, None, 0.0, 1.0, 0.0, 0.5, 0.0]}
    keeper = GradientsBeforeTheUpdate()
    trainer = trainer_for(
        policy, BATCH, folder, rewards=rewards, callbacks=[keeper],
        **{**options, "reward_weights": [0.7, 0.3], "beta": 0.1, "gradient_accumulation_steps": 1, "max_grad_norm": 0.0},
    )  # fmt: skip
    report = trainer.train()
    changes = {**changes, "scoring.kl_beta": 0.1, "scoring.kl_estimator": "k3_is"}
    if loss == "dr_grpo":
        changes["scoring.advantage"] = "group_std"  # TRL's default, whatever the loss
    settings = method_settings(name, changes, max_length=BATCH.max_length)
    advantages = advantages_of(BATCH, rewards, [0.7, 0.3], settings)
    given = Given(advantages, None, token_logp(trainer.ref_model, BATCH))
    ours = step_outcome(policy, BATCH, settings, given)
    assert_same(ours, Outcome(report.training_loss, keeper.kept))


SCALES = {"group": "group_std", "batch": "batch_std", "none": "group_mean"}


@pytest.mark.parametrize("abstaining", [False, True])
@pytest.mark.parametrize("scale", SCALES)
def test_advantages_are_those_of_trl(policy: PreTrainedModel, folder: Path, scale: str, abstaining: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    values = torch.rand(2, 8, generator=generator, dtype=torch.float64).tolist()
    if abstaining:
        values[0][1] = values[0][6] = values[1][6] = values[1][7] = None  # one completion without any reward
    rewards = {"first": values[0], "second": values[1]}
    trainer = trainer_for(policy, BATCH, folder, rewards=rewards, scale_rewards=scale, reward_weights=[1.5, 0.4])
    theirs = generation_inputs(trainer, BATCH)["advantages"]
    settings = method_settings("grpo", {"scoring.advantage": SCALES[scale]}, max_length=BATCH.max_length)
    ours = advantages_of(BATCH, rewards, [1.5, 0.4], settings)
    assert float(theirs.abs().max()) > 0.3
    torch.testing.assert_close(ours.float(), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("abstaining", [False, True])
def test_terms_normalised_one_by_one_are_those_of_trl(policy: PreTrainedModel, folder: Path, abstaining: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    values = torch.rand(2, 8, generator=generator, dtype=torch.float64).tolist()
    if abstaining:
        values[0][1] = values[0][6] = values[1][6] = values[1][7] = None  # one completion without any reward
    rewards = {"first": values[0], "second": [None if value is None else 30 * value for value in values[1]]}
    options: Options = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.5, 0.4]}
    theirs = generation_inputs(trainer_for(policy, BATCH, folder, rewards=rewards, **options), BATCH)["advantages"]
    settings = method_settings("dr_grpo", {}, max_length=BATCH.max_length)
    ours = advantages_of(BATCH, rewards, [1.5, 0.4], settings, RewardNormalization.term)
    assert float(theirs.abs().max()) > 0.3
    torch.testing.assert_close(ours.float(), theirs, atol=1e-5, rtol=1e-5)


MISMATCH = {
    "token_truncate": {"scoring.mismatch.cap": 1.2},
    "token_mask": {"scoring.mismatch.cap": 1.3, "scoring.mismatch.floor": 0.8},
    "sequence_truncate": {"scoring.mismatch.cap": 1.2},
    "sequence_mask": {"scoring.mismatch.cap": 1.5},
}


@pytest.mark.parametrize("mode", MISMATCH)
def test_the_correction_of_the_samplers_log_probabilities_is_that_of_trl(
    policy: PreTrainedModel, folder: Path, mode: str
) -> None:
    sampled = distant_logp(policy, seed=5)
    bounds = MISMATCH[mode]
    options: dict[str, Any] = {
        "loss_type": "grpo",
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_max": bounds["scoring.mismatch.cap"],
        "vllm_importance_sampling_clip_min": bounds.get("scoring.mismatch.floor"),
    }
    trainer = trainer_for(policy, BATCH, folder, sampled_logp=sampled, **options)
    # what sampling through vLLM switches on; weights need not be sent to it, since completions are given
    trainer.use_vllm, trainer._last_loaded_step = True, trainer.state.global_step
    inputs = generation_inputs(trainer, BATCH) | {"advantages": ADVANTAGES}
    changes = {**bounds, "scoring.behavior_logprobs_source": "sampler", "scoring.mismatch.mode": mode}
    settings = method_settings("grpo", changes, max_length=BATCH.max_length)
    given = Given(ADVANTAGES, inputs["old_per_token_logps"], None, sampled)
    ours, theirs = step_outcome(policy, BATCH, settings, given), window_outcome(trainer, [inputs])
    assert_same(ours, theirs)
    uncorrected = step_outcome(policy, BATCH, method_settings("grpo", {}, max_length=6), given)
    assert differ(ours, uncorrected) > 0.05

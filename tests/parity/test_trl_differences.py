"""Where TRL 1.16.0 and this package differ on one batch: what TRL gives, what is right by hand, and that it is ours."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support.parity import (
    Given,
    GivenBatch,
    Outcome,
    advantages_of,
    gradients,
    method_settings,
    step_outcome,
    token_logp,
)
from support.parity_case import ADVANTAGES, BATCH, assert_same, differ
from support.trl_peer import generation_inputs, micro_batches, trainer_for, window_outcome
from torch import Tensor
from transformers import PreTrainedModel
from trl.trainer.utils import entropy_from_logits

from maxent_grpo.objective.logprobs import log_distribution, token_entropy


def log_distributions(model: PreTrainedModel, batch: GivenBatch) -> list[Tensor]:
    """Of each completion on its own, log-probabilities over the vocabulary at every token [T_i, V]; carries gradient."""
    found: list[Tensor] = []
    for prompt, completion in zip(batch.prompt_of_each, batch.completions, strict=True):
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
        found.append(torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1))
    return found


def chosen(log_probs: list[Tensor], batch: GivenBatch) -> list[Tensor]:
    """Log-probability of each token of each completion."""
    return [
        row.gather(-1, torch.tensor(completion).unsqueeze(-1)).squeeze(-1)
        for row, completion in zip(log_probs, batch.completions, strict=True)
    ]


def entropies(log_probs: list[Tensor]) -> list[Tensor]:
    return [-(row.exp() * row).sum(dim=-1) for row in log_probs]


def outcome_by_hand(model: PreTrainedModel, loss: Tensor) -> Outcome:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return Outcome(float(loss.detach()), gradients(model))


def of_lengths(*pairs: tuple[int, int], limit: int) -> GivenBatch:
    """A prompt for each pair of lengths, with completions of so many tokens, the last one the end token."""
    groups = tuple(tuple((*(5 + at % 9 for at in range(size - 1)), 2) for size in pair) for pair in pairs)
    return GivenBatch(tuple((4 + number, 7, 9) for number in range(len(pairs))), groups, limit)


@pytest.mark.parametrize("loss", ["dapo", "cispo"])
def test_a_step_is_divided_by_its_own_tokens_not_by_the_average_of_the_rollouts_steps(
    policy: PreTrainedModel, folder: Path, loss: str
) -> None:
    pairs = [(20, 8), (3, 1), (8, 8), (10, 6)]
    batch = of_lengths(*pairs, limit=20)
    trainer = trainer_for(
        policy, batch, folder, loss_type=loss, gradient_accumulation_steps=1, steps_per_generation=4, epsilon_high=1.3
    )
    inputs = generation_inputs(trainer, batch) | {"advantages": -torch.ones(8)}
    theirs = [window_outcome(trainer, [window]) for window in micro_batches(inputs, 4)]
    settings = method_settings(loss, {}, max_length=20)
    for step, (pair, broken) in enumerate(zip(pairs, theirs, strict=True)):
        ours = step_outcome(policy, batch.part(step, step + 1), settings, Given(-torch.ones(2)))
        assert_same(ours, broken, times=16 / sum(pair))
        if loss == "dapo":  # the loss of every token is 1, and so is their mean
            assert broken.loss == pytest.approx([1.75, 0.25, 1.0, 1.0][step], abs=1e-5)
            assert ours.loss == pytest.approx(1.0, abs=1e-5)


def test_cispo_caps_the_ratio_itself_at_a_value_above_one(policy: PreTrainedModel, folder: Path) -> None:
    trainer = trainer_for(policy, BATCH, folder, loss_type="cispo")  # epsilon_high is then 0.2, and caps every ratio
    theirs = window_outcome(trainer, [generation_inputs(trainer, BATCH) | {"advantages": ADVANTAGES}])
    ours = step_outcome(policy, BATCH, method_settings("cispo", {}, max_length=6), Given(ADVANTAGES))
    logp = chosen(log_distributions(policy, BATCH), BATCH)
    total = sum(-advantage * row.sum() for advantage, row in zip(ADVANTAGES, logp, strict=True))
    reinforce = outcome_by_hand(policy, torch.as_tensor(total / BATCH.mask.sum()))
    assert_same(ours, reinforce)
    assert_same(ours, theirs, times=5.0)


def test_the_entropy_bonus_is_a_mean_over_the_steps_tokens_however_the_step_is_cut(
    policy: PreTrainedModel, folder: Path
) -> None:
    nothing = torch.zeros(8)
    trainer = trainer_for(policy, BATCH, folder, entropy_coef=0.5, gradient_accumulation_steps=4)
    inputs = generation_inputs(trainer, BATCH) | {"advantages": nothing}
    theirs = window_outcome(trainer, micro_batches(inputs, 4))
    changes = {"scoring.entropy_coef": 0.5, "scoring.batching.score_slice": 2}
    ours = step_outcome(policy, BATCH, method_settings("dapo", changes, max_length=6), Given(nothing))
    right = outcome_by_hand(policy, -0.5 * torch.cat(entropies(log_distributions(policy, BATCH))).mean())
    assert_same(ours, right)
    assert abs(theirs.loss - right.loss) > 1e-3
    assert differ(right, theirs) > 0.05


def test_the_most_uncertain_tokens_are_those_of_the_step_not_of_each_micro_batch(
    policy: PreTrainedModel, folder: Path
) -> None:
    trainer = trainer_for(policy, BATCH, folder, top_entropy_quantile=0.2, gradient_accumulation_steps=4)
    inputs = generation_inputs(trainer, BATCH) | {"advantages": ADVANTAGES}
    theirs = window_outcome(trainer, micro_batches(inputs, 4))
    changes = {"scoring.token_selection.kind": "high_entropy", "scoring.batching.score_slice": 2}
    ours = step_outcome(policy, BATCH, method_settings("dapo", changes, max_length=6), Given(ADVANTAGES))
    log_probs = log_distributions(policy, BATCH)
    entropy = [row.detach() for row in entropies(log_probs)]
    threshold = torch.cat(entropy).quantile(0.8)
    total = torch.zeros(())
    for advantage, logp, uncertain in zip(ADVANTAGES, chosen(log_probs, BATCH), entropy, strict=True):
        ratio = (logp - logp.detach()).exp()
        total = total - (advantage * ratio)[uncertain >= threshold].sum() / BATCH.mask.sum()
    right = outcome_by_hand(policy, total)
    assert_same(ours, right)
    assert differ(right, theirs) > 0.05


def test_a_completion_without_a_reward_leaves_the_step(policy: PreTrainedModel, folder: Path) -> None:
    rewards = {"right": [1.0, 0.0, None, 1.0, 0.0, 0.0, 1.0, 0.0]}
    trainer = trainer_for(policy, BATCH, folder, rewards=rewards, loss_type="grpo")
    inputs = generation_inputs(trainer, BATCH)
    theirs = window_outcome(trainer, [inputs])
    settings = method_settings("grpo", {}, max_length=6)
    advantages = advantages_of(BATCH, rewards, [1.0], settings)
    torch.testing.assert_close(advantages.float(), inputs["advantages"], atol=1e-5, rtol=1e-5)
    valid = torch.tensor([value is not None for value in rewards["right"]])
    ours = step_outcome(policy, BATCH, settings, Given(advantages, valid=valid))
    logp = chosen(log_distributions(policy, BATCH), BATCH)
    rows = [-a * (row - row.detach()).exp().mean() for a, row in zip(advantages, logp, strict=True)]
    right = outcome_by_hand(policy, torch.stack([row for row, known in zip(rows, valid, strict=True) if known]).mean())
    assert_same(ours, right)
    assert_same(ours, theirs, times=8 / 7)  # TRL divides by all eight completions


def test_a_rollout_without_any_reward_trains_nothing(policy: PreTrainedModel, folder: Path) -> None:
    rewards = {"right": [None] * 8}
    trainer = trainer_for(policy, BATCH, folder, rewards=rewards, loss_type="grpo", beta=0.1)
    inputs = generation_inputs(trainer, BATCH)
    settings = method_settings("grpo", {"scoring.kl_beta": 0.1}, max_length=6)
    reference = token_logp(trainer.ref_model, BATCH)
    nobody = torch.zeros(8, dtype=torch.bool)
    ours = step_outcome(policy, BATCH, settings, Given(torch.zeros(8), None, reference, valid=nobody))
    assert ours.loss == 0.0
    assert all(not value.any() for value in ours.gradients.values())
    assert window_outcome(trainer, [inputs]).loss > 0.01  # the pull to the reference alone


def test_equal_rewards_make_advantages_of_exactly_zero(policy: PreTrainedModel, folder: Path) -> None:
    batch = GivenBatch(((7, 5, 9),), (tuple((3 + n, 2) for n in range(8)),), 2)
    settings, largest = method_settings("grpo", {}, max_length=2), 0.0
    for reward in (0.95, 0.1, 0.7, 1 / 3):
        rewards = {"constant": [reward] * 8}
        trainer = trainer_for(policy, batch, folder, rewards=rewards)
        largest = max(largest, float(generation_inputs(trainer, batch)["advantages"].abs().max()))
        ours = advantages_of(batch, rewards, [1.0], settings)
        assert torch.equal(ours, torch.zeros_like(ours))
    assert largest > 1e-5  # rounding of the mean over (rounding of the deviation + 1e-4)


def test_with_sequence_ratios_completions_count_alike_whatever_their_length(
    policy: PreTrainedModel, folder: Path
) -> None:
    batch, advantages = of_lengths((1, 9), limit=9), torch.tensor([1.0, -1.0])
    trainer = trainer_for(policy, batch, folder, importance_sampling_level="sequence")  # with TRL's default loss
    theirs = window_outcome(trainer, [generation_inputs(trainer, batch) | {"advantages": advantages}])
    ours = step_outcome(policy, batch, method_settings("gspo", {}, max_length=9), Given(advantages))
    assert theirs.loss == pytest.approx(0.8, abs=1e-5)
    assert ours.loss == pytest.approx(0.0, abs=1e-5)
    logp = chosen(log_distributions(policy, batch), batch)
    rows = [-a * (row - row.detach()).mean().exp() for a, row in zip(advantages, logp, strict=True)]
    assert_same(ours, outcome_by_hand(policy, torch.stack(rows).mean()))
    changes = {"scoring.ratio_level": "sequence", "scoring.clipping.clip_range_high": 0.2}
    asked_for = step_outcome(policy, batch, method_settings("dapo", changes, max_length=9), Given(advantages))
    assert_same(asked_for, theirs)  # the other pairing can be had, by name


def test_a_token_that_the_behaviour_policy_found_impossible_leaves_the_gradient_finite(
    policy: PreTrainedModel, folder: Path
) -> None:
    old = token_logp(policy, BATCH)
    old[0, 1] -= 120.0  # its ratio overflows; the advantage is positive, so that the clip stops the token
    trainer = trainer_for(policy, BATCH, folder, loss_type="grpo")
    inputs = generation_inputs(trainer, BATCH) | {"advantages": ADVANTAGES, "old_per_token_logps": old}
    theirs = window_outcome(trainer, [inputs])
    ours = step_outcome(policy, BATCH, method_settings("grpo", {}, max_length=6), Given(ADVANTAGES, old))
    logp = chosen(log_distributions(policy, BATCH), BATCH)
    rows = [-a * (row - row.detach()).exp() for a, row in zip(ADVANTAGES, logp, strict=True)]
    rows[0] = torch.stack([rows[0][0], -1.2 * ADVANTAGES[0], rows[0][2]])
    assert_same(ours, outcome_by_hand(policy, torch.stack([row.mean() for row in rows]).mean()))
    assert any(value.isnan().any() for value in theirs.gradients.values())


def test_one_token_adds_at_most_ten_nats_to_the_token_kl(policy: PreTrainedModel, folder: Path) -> None:
    reference = token_logp(policy, BATCH)
    reference[4, 0] += 3.5
    trainer = trainer_for(policy, BATCH, folder, loss_type="dapo", beta=0.1, use_bias_correction_kl=False)
    inputs = generation_inputs(trainer, BATCH) | {"advantages": ADVANTAGES, "ref_per_token_logps": reference}
    theirs = window_outcome(trainer, [inputs])
    settings = method_settings("dapo", {"scoring.kl_beta": 0.1}, max_length=6)
    ours = step_outcome(policy, BATCH, settings, Given(ADVANTAGES, None, reference))
    logp = chosen(log_distributions(policy, BATCH), BATCH)
    rows = [-a * (row - row.detach()).exp().sum() for a, row in zip(ADVANTAGES, logp, strict=True)]
    right = outcome_by_hand(policy, (torch.stack(rows).sum() + 0.1 * 10.0) / BATCH.mask.sum())
    assert_same(ours, right)
    unbounded = 0.1 * (math.exp(3.5) - 1 - 3.5 - 10.0) / float(BATCH.mask.sum())
    assert theirs.loss == pytest.approx(right.loss + unbounded, abs=1e-4)


def test_the_entropy_of_a_distribution_with_an_impossible_token_is_finite() -> None:
    logits = torch.tensor([0.0, 0.0, -torch.inf])
    assert entropy_from_logits(logits).isnan()
    assert token_entropy(log_distribution(logits)).item() == pytest.approx(0.6931472)

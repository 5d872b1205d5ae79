"""Complaints about the scale of the loss and about masks, each with the number that is right and the one that was wrong.

The numbers are those of the list of complaints; the gaps in it are intended.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support.numbers import assert_equals
from support.peers import ADVANTAGES, LENGTHS, alone, policy_term, step_of_lengths
from support.runs import configured, metric_lines
from support.steps import OPTIONS, random_step, run_step, settings_for

from maxent_grpo.objective.reduction import StepCounts
from maxent_grpo.training.experience import loader_ranges, portion_ranges
from maxent_grpo.training.setup import run_from_config
from maxent_grpo.training.types.choices import RatioLevel, Reduction
from maxent_grpo.training.types.runtime import OptimizationSchedule

SPLITS = ((), (2,), (1, 2, 3), (1, 3), (3,))


def test_a_token_mean_is_the_same_for_every_split_and_every_window() -> None:
    """Complaint 1: DAPO's and CISPO's loss changes with gradient accumulation. 2/3 for any split; 1 for windows of any size."""
    step = step_of_lengths(LENGTHS)
    for cuts in SPLITS:
        result = policy_term(step, ADVANTAGES, "dapo", cuts=cuts)
        assert_equals(result.loss, -2 / 3)
        assert_equals(result.gradient, policy_term(step, ADVANTAGES, "dapo").gradient)
        assert_equals(policy_term(step, ADVANTAGES, "cispo", cuts=cuts).gradient, result.gradient)
    windows = [28, 4, 16, 16]
    mean = sum(windows) / len(windows)
    for tokens in windows:
        window = step_of_lengths([tokens // 4] * 4)
        assert_equals(policy_term(window, [-1.0] * 4, "dapo", cuts=(1, 2, 3)).loss, 1.0)
        # with the average of the rollout for a denominator, 1.75, 0.25, 1 and 1
        shared = StepCounts(4, mean, 1)
        assert_equals(policy_term(window, [-1.0] * 4, "dapo", counts=shared).loss, tokens / mean)


def test_a_token_mean_is_not_a_mean_of_the_micro_batches_means() -> None:
    """Complaint 2: token means are taken per micro-batch and then averaged. 2/3 with micro-batches of two rows, not 1/3."""
    step = step_of_lengths(LENGTHS)
    assert_equals(policy_term(step, ADVANTAGES, "dapo", cuts=(2,)).loss, -2 / 3)
    in_halves = StepCounts(4, 12, 1, slices=2)
    averaged = policy_term(step, ADVANTAGES, cuts=(2,), counts=in_halves, reduction=Reduction.micro_batch)
    assert_equals(averaged.loss, -1 / 3)


def test_three_reductions_are_three_numbers() -> None:
    """Complaint 3: what is called GRPO's loss is really a mean over tokens. Sequence mean 0.625, constant 0.25, token 2/3."""
    step = step_of_lengths(LENGTHS)
    losses = {name: float(policy_term(step, ADVANTAGES, name).loss) for name in ("grpo", "dr_grpo", "dapo")}
    assert losses == pytest.approx({"grpo": -0.625, "dr_grpo": -0.25, "dapo": -2 / 3}, abs=1e-12)


def test_a_constant_normaliser_divides_by_the_number_of_completions_too() -> None:
    """Complaint 4: Dr.GRPO's gradient grows with the micro-batch, the batch size being left out. 0.25 always, not 1 at four rows."""
    step = step_of_lengths(LENGTHS)
    for cuts in SPLITS:
        assert_equals(policy_term(step, ADVANTAGES, "dr_grpo", cuts=cuts).loss, -0.25)
    without = policy_term(step, ADVANTAGES, "dr_grpo", counts=StepCounts(1, 12, 1))
    assert_equals(without.loss, -1.0)


def test_a_masked_completion_leaves_the_numerator_and_the_denominator() -> None:
    """Complaint 6: tokens of truncated completions leave the sum but stay in the count. 5/6, not 5/12."""
    step = step_of_lengths(LENGTHS, masked=[3])
    for cuts in SPLITS:
        result = policy_term(step, ADVANTAGES, "dapo", cuts=cuts)
        assert_equals(result.loss, -5 / 6)
        assert not result.gradient[3].any()
    still_counted = policy_term(step, ADVANTAGES, "dapo", counts=StepCounts(4, 12, 1))
    assert_equals(still_counted.loss, -5 / 12)


def schedule(prompts_per_step: int, grad_accum_steps: int) -> OptimizationSchedule:
    return OptimizationSchedule(1, 1, grad_accum_steps, 1.0, None, 2, 0, prompts_per_step=prompts_per_step)


@pytest.mark.parametrize("method", ["grpo", "dr_grpo", "dapo"])
def test_a_last_shorter_window_is_a_step_of_its_own_size(method: str) -> None:
    """Complaint 7: a last window of two micro-batches is still divided by four. Its gradient is that of its own rows, not half."""
    lengths, advantages = [3, 1, 4, 2, 5, 2], [1.0, -1.0, 0.5, 2.0, -2.0, 1.0]
    windows = portion_ranges(6, schedule(4, 4))
    assert [len(window) for window in windows] == [4, 2]
    last = windows[1]
    parts = loader_ranges(last, 4)
    assert [len(part) for part in parts] == [1, 1]
    rows, own = step_of_lengths(lengths[last.slice]), advantages[last.slice]
    accumulated = policy_term(rows, own, method, cuts=[part.first - last.first for part in parts[1:]])
    assert_equals(accumulated.gradient, policy_term(rows, own, method).gradient)
    counts = rows.counts
    divided_by_four = counts._replace(sequences=2 * counts.sequences, tokens=2 * counts.tokens)
    assert_equals(policy_term(rows, own, method, counts=divided_by_four).gradient, accumulated.gradient / 2)


def test_a_step_in_which_every_token_is_masked_counts_and_is_free_of_nan(tmp_path: Path) -> None:
    """Complaint 8: a micro-batch without a trained token makes loss or metrics NaN. Loss 0, zero gradient, a counted step."""
    nothing = step_of_lengths(LENGTHS, masked=[0, 1, 2, 3]).poisoned(math.nan)
    for name in ("grpo", "dr_grpo", "dapo", "gspo", "bnpo"):
        result = policy_term(nothing, ADVANTAGES, name)
        assert result.loss.item() == 0.0
        assert torch.equal(result.gradient, torch.zeros_like(result.gradient))
    unrewarded = ("scoring=dr_grpo", "scoring.kl_beta=0.1", "evaluation.enabled=false")
    result = run_from_config(configured(tmp_path / "run", *unrewarded, settings=alone("silent")))
    lines = metric_lines(tmp_path / "run")
    assert result.global_step == len(lines) == 2
    for line in lines:
        assert line["loss/total"] == line["optim/gradient_norm"] == 0.0
        assert all(math.isfinite(value) for value in line.values())
        assert "reward/mean" not in line


def test_a_sequence_ratio_does_not_weight_completions_by_their_length() -> None:
    """Complaint 9: GSPO with a loss summed over tokens weights by length. Lengths 1 and 9, advantages 1 and -1: 0, not -0.8."""
    step = step_of_lengths([1, 9])
    assert_equals(policy_term(step, [1.0, -1.0], "gspo").loss, 0.0)
    summed = policy_term(step, [1.0, -1.0], "gspo", reduction=Reduction.token)
    assert_equals(-summed.loss, -0.8)


def test_tokens_of_advantage_zero_count_in_the_denominator() -> None:
    """Complaint 10: advantages are passed where the mask belongs, so that tokens of advantage 0 are not counted. 5/12, not 5/6."""
    step = step_of_lengths(LENGTHS)
    result = policy_term(step, [*ADVANTAGES[:3], 0.0], "dapo", cuts=(2,))
    assert_equals(result.loss, -5 / 12)
    assert not result.gradient[3].any()


DEPENDS_ON_THE_CUT = ["bnpo"]
"""A mean of the means of slices is what this option is for; ``reduction=micro_batch`` says so."""


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in DEPENDS_ON_THE_CUT])
def test_no_branch_of_the_loss_forgets_the_accumulation(name: str) -> None:
    """Complaint 11: one branch of the loss lacks the division. Every method has equal loss and gradient for 1, 2 and 4 parts."""
    step = random_step(seed=3)
    settings = settings_for(name, kl_beta=0.1, entropy_coef=0.01)
    whole = run_step(step, settings)
    assert float(whole.gradient.abs().max()) > 1e-4
    for cuts in ((8,), (4, 8, 12)):
        result = run_step(step, settings, cuts=cuts)
        assert_equals(result.loss, whole.loss)
        assert_equals(result.gradient, whole.gradient)
    sequence_level = settings_for(name, ratio_level=RatioLevel.sequence, reduction=Reduction.sequence)
    assert_equals(run_step(step, sequence_level, cuts=(4, 8)).gradient, run_step(step, sequence_level).gradient)

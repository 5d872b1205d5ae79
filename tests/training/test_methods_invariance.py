"""Invariances of every method on made-up steps of any shape: what must not matter does not, and what is promised holds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.promises import PROMISES, Zero
from support.properties import REWARDS, brief, steps
from support.steps import OPTIONS, Step, choice_of, random_step, run_step, settings_for, targets_of
from torch import Tensor

from maxent_grpo.training.method import resolve_method
from maxent_grpo.training.types.choices import (
    AdvantageKind,
    NeutralGroups,
    RatioLevel,
    ScoreMode,
    Surrogate,
    TokenSelection,
)
from maxent_grpo.training.types.credit import SurrogateSettings
from maxent_grpo.training.types.runtime import ScoringSettings

every_method = pytest.mark.parametrize("name", OPTIONS)
TOKENS = ("mask", "logp", "old_logp", "reference_logp", "sampled_logp", "entropy", "priority")
ROWS = ("utilities", "valid", "complete", "keys")


def tilted(name: str) -> ScoringSettings:
    """The method with a pull towards the reference and a token KL, so that every term is there."""
    settings = settings_for(name, kl_beta=0.1)
    settings.weighting.beta = 0.3
    return settings


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_every_option_has_its_promises_and_every_refusal_its_reason() -> None:
    assert PROMISES.keys() == OPTIONS.keys()
    for promise in PROMISES.values():
        assert bool(promise.why) == (not (promise.shift and promise.alone and promise.zero is Zero.group))


@every_method
def test_the_order_of_groups_and_of_completions_does_not_matter(name: str) -> None:
    @brief
    @given(steps(), st.randoms(use_true_random=False))
    def check(step: Step, random: st.DrawFn) -> None:
        prompts, group = step.valid.shape
        within = [random.sample(range(group), group) for _ in range(prompts)]  # type: ignore[attr-defined]
        order = torch.tensor(
            [at * group + member for at in random.sample(range(prompts), prompts) for member in within[at]]  # type: ignore[attr-defined]
        )
        moved = {name: getattr(step, name)[order] for name in TOKENS}
        moved |= {name: getattr(step, name).flatten()[order].view(prompts, group) for name in ROWS}
        first, again = run_step(step, tilted(name)), run_step(Step(**moved), tilted(name))
        assert_same(again.loss, first.loss)
        assert_same(again.gradient, first.gradient[order])

    check()


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "bnpo"])
def test_slices_do_not_matter(name: str) -> None:
    @brief
    @given(steps(), st.data())
    def check(step: Step, data: st.DataObject) -> None:
        cuts = data.draw(st.sets(st.integers(1, max(len(step.logp) - 1, 1)), max_size=4))
        inside = sorted(cut for cut in cuts if cut < len(step.logp))
        whole, pieces = run_step(step, tilted(name)), run_step(step, tilted(name), cuts=inside)
        assert_same(pieces.loss, whole.loss)
        assert_same(pieces.gradient, whole.gradient)

    check()


def test_slices_matter_to_bnpo_which_is_their_mean_of_means() -> None:
    step, settings = random_step(seed=1), settings_for("bnpo")
    whole, pieces = run_step(step, settings), run_step(step, settings, cuts=(3, 9))
    assert float((pieces.gradient - whole.gradient).abs().max()) > 1e-2
    lengths = [int(step.mask[rows].sum()) for rows in (slice(0, 3), slice(3, 9), slice(9, 16))]
    per_token = whole.gradient * int(step.mask.sum())
    by_hand = torch.cat(
        [per_token[rows] / (3 * n) for rows, n in zip((slice(0, 3), slice(3, 9), slice(9, 16)), lengths, strict=True)]
    )
    assert_same(pieces.gradient, by_hand)


@every_method
def test_padding_does_not_matter_whatever_stands_there(name: str) -> None:
    @brief
    @given(steps(), st.integers(0, 3), st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    def check(step: Step, extra: int, poison: float) -> None:
        def wider(values: Tensor) -> Tensor:
            filler = torch.zeros(len(values), extra, dtype=values.dtype)
            return torch.cat([values, filler], dim=1)

        wide = dataclasses.replace(step, **{name: wider(getattr(step, name)) for name in TOKENS}).poisoned(poison)
        clean, padded = run_step(step, tilted(name)), run_step(wide, tilted(name))
        width = step.logp.shape[1]
        assert_same(padded.loss, clean.loss)
        assert_same(padded.gradient[:, :width], clean.gradient)
        assert not padded.gradient[:, width:].any()
        assert not clean.gradient[~step.mask].any()

    check()


def shifted_apart(name: str, step: Step, shift: Tensor) -> float:
    """How far a shift of each group's rewards moves the gradient."""
    settings = tilted(name)
    settings.weighting.neutral_groups = NeutralGroups.keep
    moved = dataclasses.replace(step, utilities=step.utilities + shift.unsqueeze(-1))
    return float((run_step(moved, settings).gradient - run_step(step, settings).gradient).abs().max())


@pytest.mark.parametrize("name", [name for name in OPTIONS if PROMISES[name].shift])
def test_a_constant_added_to_the_rewards_of_a_group_does_not_matter(name: str) -> None:
    @brief
    @given(steps(), st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4))
    def check(step: Step, shifts: list[float]) -> None:
        shift = torch.tensor(shifts[: len(step.utilities)], dtype=torch.float64)
        assert shifted_apart(name, step, shift) < 1e-8

    check()


@pytest.mark.parametrize("name", [name for name in OPTIONS if not PROMISES[name].shift])
def test_where_a_shift_is_not_promised_there_is_one_that_matters(name: str) -> None:
    assert shifted_apart(name, random_step(seed=3), torch.full((4,), 0.5, dtype=torch.float64)) > 1e-4


def neutral(step: Step, groups: slice, reward: float) -> Step:
    """The step with equal rewards in some of its groups."""
    utilities = step.utilities.clone()
    utilities[groups] = reward
    return dataclasses.replace(step, utilities=utilities)


@pytest.mark.parametrize("name", [name for name in OPTIONS if PROMISES[name].zero is not Zero.never])
def test_equal_rewards_give_exactly_no_signal_where_that_is_promised(name: str) -> None:
    promise = PROMISES[name].zero
    drifts = (0.0,) if promise is Zero.on_policy else (0.0, 0.3)

    @brief
    @given(steps(drifts=drifts), st.sampled_from([*REWARDS.tolist(), 0.1, 1 / 3]))
    def check(step: Step, reward: float) -> None:
        groups = slice(None) if promise is Zero.step else slice(0, 1)
        result = run_step(neutral(step, groups, reward), settings_for(name))
        of_prompts = result.gradient.view(*step.valid.shape, -1)
        assert torch.equal(of_prompts[groups], torch.zeros_like(of_prompts[groups]))

    check()


@pytest.mark.parametrize("name", [name for name in OPTIONS if PROMISES[name].zero is not Zero.group])
def test_where_it_is_not_promised_equal_rewards_do_give_a_signal(name: str) -> None:
    step = random_step(seed=4)
    step = dataclasses.replace(step, keys=torch.tensor([[0, 0, 0, 1]] * 4))
    result = run_step(neutral(step, slice(1, 2), 1.0), settings_for(name))
    assert float(result.gradient[4:8].abs().max()) > 1e-6


@every_method
def test_a_completion_alone_in_its_group_gives_no_signal_unless_it_is_said_to(name: str) -> None:
    @brief
    @given(steps())
    def check(step: Step) -> None:
        alone = only_first(step)
        assert not run_step(alone, settings_for(name)).gradient.any()
        assert not run_step(alone, tilted_without_kl(name)).gradient.any()

    if PROMISES[name].alone:
        check()
    else:
        assert run_step(only_first(random_step(seed=5)), settings_for(name)).gradient.any()


def only_first(step: Step) -> Step:
    """The first completion of each group, in groups of one."""
    size = step.valid.shape[1]
    kept = {name: getattr(step, name)[::size] for name in TOKENS}
    return Step(**kept, **{name: getattr(step, name)[:, :1] for name in ROWS})


def tilted_without_kl(name: str) -> ScoringSettings:
    return dataclasses.replace(tilted(name), kl_beta=0.0)


WITHIN_GROUPS = [name for name in OPTIONS if PROMISES[name].alone and PROMISES[name].zero is not Zero.step]


@pytest.mark.parametrize("name", WITHIN_GROUPS)
def test_a_group_with_a_single_valid_completion_gives_no_signal(name: str) -> None:
    step = random_step(seed=6)
    valid = step.valid.clone()
    valid[3, 1:] = False
    lonely = dataclasses.replace(step, valid=valid, mask=step.mask & valid.view(-1, 1))
    assert not run_step(lonely, tilted_without_kl(name)).gradient[12:].any()
    assert run_step(step, tilted_without_kl(name)).gradient[12:].any()


@every_method
def test_a_batch_in_which_nothing_is_trained_has_loss_zero_and_no_gradient(name: str) -> None:
    @brief
    @given(steps(), st.booleans())
    def check(step: Step, rewarded: bool) -> None:
        # completions without a trained token, with or without a reward; what is maximised then is empty
        valid = step.valid if rewarded else torch.zeros_like(step.valid)
        masked = dataclasses.replace(step, valid=valid, mask=torch.zeros_like(step.mask)).poisoned(torch.nan)
        result = run_step(masked, tilted(name))
        assert not result.gradient.any()
        assert torch.isfinite(result.loss)
        assert rewarded or result.loss == 0.0

    check()


CREDITED = [name for name in OPTIONS if OPTIONS[name]().advantage is not AdvantageKind.none]
CLIPS: dict[str, dict[str, Any]] = {
    "none": {"use_clip_objective": False},
    "ppo": {"clip_range": 0.2},
    "clip_higher": {"clip_range": 0.2, "clip_range_high": 0.28},
    "gspo": {"clip_range": 3e-4, "clip_range_high": 4e-4},
    "two_sided": {"clip_range": 0.2, "clip_delta": 4.0},
}


def on_policy_gradient(
    name: str, level: RatioLevel, kind: Surrogate = Surrogate.clip, **clip: Any
) -> tuple[Tensor, Tensor]:
    """The policy term's gradient where policy and behaviour policy agree, and REINFORCE's: -c_i A_i on the trained tokens."""
    step = random_step(seed=5)
    step = dataclasses.replace(step, old_logp=step.logp)
    base = settings_for(name, entropy_coef=0.0, ratio_level=level, surrogate=SurrogateSettings(kind))
    base.weighting.listwise_coef = 0.0
    base.clipping = dataclasses.replace(base.clipping, **({"use_clip_objective": True, "clip_range_high": None} | clip))
    method = resolve_method(base, score_mode=ScoreMode.sum, max_completion_len=8)
    whole = targets_of(step, method, base.weighting, ScoreMode.sum)
    choice = choice_of(step, method, base, whole.advantages)
    trained = step.mask if choice is None or choice.trained is None else choice.trained
    per_row = whole.advantages.flatten() * method.coefficients(step.lengths, step.counts)
    return run_step(step, base).gradient, torch.where(trained, -per_row.unsqueeze(-1), 0.0)


@pytest.mark.parametrize("name", CREDITED)
def test_on_policy_every_clip_has_bitwise_the_gradient_of_reinforce(name: str) -> None:
    for clip in CLIPS.values():
        found, expected = on_policy_gradient(name, RatioLevel.token, **clip)
        assert torch.equal(found, expected)
        assert float(expected.abs().max()) > 1e-3
    found, expected = on_policy_gradient(name, RatioLevel.token, Surrogate.weighted_likelihood)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", CREDITED)
def test_on_policy_ratios_of_sequences_and_the_soft_gate_agree_with_it_to_rounding(name: str) -> None:
    found, expected = on_policy_gradient(name, RatioLevel.token, Surrogate.soft_gate)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-16)
    if OPTIONS[name]().token_selection.kind is TokenSelection.all:
        whole = [on_policy_gradient(name, RatioLevel.sequence, **clip) for clip in CLIPS.values()]
        assert all(torch.equal(gradient, whole[0][0]) for gradient, _ in whole)
        torch.testing.assert_close(*whole[0], rtol=1e-14, atol=1e-16)

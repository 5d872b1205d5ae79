"""Every field of the clip and of the weighting changes the loss or its gradient, where it is said to act."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import pytest
import torch
from support.steps import StepResult, random_step, run_step, scoring_settings

from maxent_grpo.config.scoring import DrGrpoScoringConfig, MaxEntListwiseScoringConfig, MaxEntScoringConfig
from maxent_grpo.training.method import upper_clip
from maxent_grpo.training.types.choices import NeutralGroups, ScoreMode
from maxent_grpo.training.types.runtime import ClipSettings, ScoringSettings
from maxent_grpo.training.types.weighting import WeightingSettings

ADVANTAGE: dict[str, object] = {"method": DrGrpoScoringConfig}
AUXILIARY: dict[str, object] = {"method": MaxEntListwiseScoringConfig, "use_clip_objective": True}
LISTWISE: dict[str, object] = {"method": MaxEntListwiseScoringConfig}
HYBRID: dict[str, object] = {"method": MaxEntScoringConfig}


class Change(NamedTuple):
    """A field, two values of it, and the settings beside which it acts or does not act."""

    field: str
    values: tuple[object, object]
    beside: Mapping[str, object]
    acts: bool = True
    score_mode: ScoreMode = ScoreMode.sum


CLIP_CHANGES = [
    Change("clip_range", (0.1, 0.3), ADVANTAGE),
    Change("clip_range", (0.1, 0.3), ADVANTAGE | {"use_clip_objective": False}, acts=False),
    Change("clip_range", (0.01, 0.5), AUXILIARY),
    Change("clip_range", (0.1, 0.3), LISTWISE, acts=False),
    Change("clip_range_high", (None, 0.6), ADVANTAGE),
    Change("clip_range_high", (0.01, 0.6), AUXILIARY),
    Change("clip_delta", (None, 1.3), ADVANTAGE),
    Change("clip_delta", (None, 1.21), ADVANTAGE | {"clip_range_high": 0.2}),
    Change("clip_delta", (None, 1.3), ADVANTAGE | {"use_clip_objective": False}, acts=False),
    Change("use_clip_objective", (True, False), ADVANTAGE),
    Change("use_clip_objective", (True, False), LISTWISE),
    Change("clip_objective_coef", (1.0, 0.5), ADVANTAGE),
    Change("clip_objective_coef", (1.0, 0.5), AUXILIARY),
    Change("clip_objective_coef", (1.0, 0.5), LISTWISE, acts=False),
    Change("clip_adv_baseline", (None, 0.4), AUXILIARY),
    Change("clip_adv_baseline", (None, 0.4), ADVANTAGE, acts=False),
]

WEIGHTING_CHANGES = [
    Change("tau", (0.1, 0.5), LISTWISE),
    Change("tau", (0.1, 0.5), HYBRID),
    Change("tau", (0.1, 0.5), AUXILIARY),
    Change("tau", (0.1, 0.5), ADVANTAGE, acts=False),
    Change("beta", (0.0, 0.3), LISTWISE),
    Change("q_temperature", (1.0, 2.0), LISTWISE),
    Change("q_epsilon", (0.0, 0.05), LISTWISE),
    Change("score_length", (16, 64), LISTWISE, score_mode=ScoreMode.const),
    Change("score_length", (16, 64), LISTWISE, acts=False),
    Change("neutral_groups", (NeutralGroups.keep, NeutralGroups.skip_all_wrong), LISTWISE),
    Change("neutral_groups", (NeutralGroups.skip_all_wrong, NeutralGroups.skip), LISTWISE),
    Change("neutral_groups", (NeutralGroups.keep, NeutralGroups.skip), ADVANTAGE, acts=False),
    Change("listwise_coef", (0.3, 1.0), HYBRID),
    Change("listwise_coef", (0.3, 0.0), HYBRID),
    Change("right_threshold", (0.999, 1.5), LISTWISE),
    Change("right_threshold", (0.999, 1.5), LISTWISE | {"neutral_groups": NeutralGroups.keep}, acts=False),
]


def settings_with(change: Change, value: object) -> ScoringSettings:
    """Settings of the method with the fields beside it and the changed one, each put where it belongs."""
    beside = {name: other for name, other in change.beside.items() if name != "method"}
    settings = scoring_settings(change.beside["method"]())  # type: ignore[operator]
    for name, other in (beside | {change.field: value}).items():
        node = settings.clipping if hasattr(settings.clipping, name) else settings.weighting
        assert hasattr(node, name)
        setattr(node, name, other)
    return settings


def measured(change: Change, value: object) -> StepResult:
    return run_step(random_step(seed=21, drift=0.5), settings_with(change, value), score_mode=change.score_mode)


@pytest.mark.parametrize("change", CLIP_CHANGES + WEIGHTING_CHANGES, ids=lambda c: f"{c.field}-{c.acts}")
def test_a_field_changes_loss_and_gradient_exactly_where_it_acts(change: Change) -> None:
    first, second = (measured(change, value) for value in change.values)
    if change.acts:
        assert (first.gradient - second.gradient).abs().max() > 1e-6
        assert float((first.loss - second.loss).abs()) > 1e-6
    else:
        assert torch.equal(first.loss, second.loss)
        assert torch.equal(first.gradient, second.gradient)


def test_every_field_is_in_the_table() -> None:
    assert {change.field for change in CLIP_CHANGES} == {field.name for field in dataclasses.fields(ClipSettings)}
    weighting = {field.name for field in dataclasses.fields(WeightingSettings)}
    assert {change.field for change in WEIGHTING_CHANGES} | {"score_mode"} == weighting


@pytest.mark.parametrize("method", [LISTWISE, HYBRID])
def test_each_score_mode_is_another_loss(method: Mapping[str, object]) -> None:
    change = Change("score_length", (16, 16), method)
    step, settings = random_step(seed=21), settings_with(change, 16)
    gradients = [
        run_step(step, settings, score_mode=mode).gradient for mode in (ScoreMode.sum, ScoreMode.mean, ScoreMode.const)
    ]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (gradients[a] - gradients[b]).abs().max() > 1e-5


def test_the_upper_clip_is_the_lower_one_unless_it_is_set() -> None:
    clip = ClipSettings(clip_range=0.2, use_clip_objective=True, clip_objective_coef=1.0, clip_adv_baseline=None)
    assert upper_clip(clip) == 0.2
    assert upper_clip(dataclasses.replace(clip, clip_range_high=0.28)) == 0.28
    assert upper_clip(dataclasses.replace(clip, clip_range_high=0.0)) == 0.0


def test_only_the_sum_of_tau_and_beta_divides() -> None:
    assert WeightingSettings(tau=0.1, beta=0.4).denom == pytest.approx(0.5)
    assert "denom" not in {field.name for field in dataclasses.fields(WeightingSettings)}

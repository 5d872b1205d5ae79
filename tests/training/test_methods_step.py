"""Methods of each kind in the real training step: cut, accumulated and split over minibatches, the gradient is the same.

In double precision, but Transformers normalises in single precision inside; see ``test_step_exact``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from support.laboratory import Laboratory, Outcome, largest_difference
from support.runs import configured

from maxent_grpo.training.types.choices import Reduction

TOLERANCE = 1e-5
METHODS: dict[str, tuple[str, ...]] = {
    "dapo": ("scoring.dynamic_sampling.enabled=false",),
    "gspo": (),
    "cispo": (),
    "clip_cov": ("scoring.token_selection.share=0.1", "scoring.token_selection.covariance_low=0.05"),
    "kl_cov": ("scoring.token_selection.share=0.1",),
    "high_entropy_tokens": (),
    "xdr": (),
    "soft": ("scoring.weighting.beta=0.2",),
    "gvpo": ("scoring.weighting.beta=0.2",),
    "maxent_is": (),
    "seed_grpo": (),
}
"""Options with the settings that make them act on a few hundred tokens."""

CUTS: dict[str, dict[str, Any]] = {
    "slices that cut groups": {"score_slice": 3},
    "two loader batches": {"grad_accum_steps": 2},
    "both": {"score_slice": 5, "grad_accum_steps": 2},
}

Bench = Callable[[str], tuple[Laboratory, Outcome]]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """For each method, a laboratory and its step taken in one piece; made once."""

    @cache
    def build(method: str) -> tuple[Laboratory, Outcome]:
        config = configured(
            tmp_path_factory.mktemp("bench") / "run",
            "model.dtype=float64",
            "evaluation.enabled=false",
            "optimization.max_grad_norm=0",
            f"scoring={method}",
            *METHODS.get(method, ()),
        )
        made = Laboratory(config)
        return made, made.step(made.rollout())

    return build


def taken_in_pieces(lab: Laboratory, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> Outcome:
    lab.reset()
    for name, value in settings.items():
        owner = lab.ctx.optimization.schedule if name == "grad_accum_steps" else lab.ctx.scoring.batching
        monkeypatch.setattr(owner, name, value)
    return lab.step(lab.rollout())


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        # the short form has each cut with one method, and both cuts at once with all
        pytest.param(
            method,
            settings,
            id=f"{name}-{method}",
            marks=() if name == "both" or method == "dapo" else pytest.mark.slow,
        )
        for name, settings in CUTS.items()
        for method in METHODS
    ],
)
def test_slices_and_accumulation_do_not_change_the_gradient(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str, settings: dict[str, Any]
) -> None:
    lab, whole = bench(method)
    pieces = taken_in_pieces(lab, monkeypatch, settings)
    assert len(pieces.report.losses) > len(whole.report.losses)
    assert pieces.loss == pytest.approx(whole.loss, abs=TOLERANCE)
    assert largest_difference(pieces.gradient, whole.gradient) < TOLERANCE
    assert max(float(gradient.abs().max()) for gradient in whole.gradient.values()) > 1e2 * TOLERANCE
    assert pieces.report.selected_tokens == whole.report.selected_tokens


@pytest.mark.parametrize("method", ["clip_cov", "kl_cov", "high_entropy_tokens"])
def test_the_choice_of_tokens_is_a_real_one(bench: Bench, method: str) -> None:
    _, whole = bench(method)
    assert whole.report.selected_tokens is not None
    assert 0.0 < whole.report.selected_tokens < 0.5


@pytest.mark.parametrize("settings", list(CUTS.values()), ids=list(CUTS))
def test_bnpo_alone_depends_on_how_a_step_is_cut(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    lab, whole = bench("bnpo")
    pieces = taken_in_pieces(lab, monkeypatch, settings)
    assert largest_difference(pieces.gradient, whole.gradient) > 1e2 * TOLERANCE


def in_minibatches(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps from each rollout of four prompts."""
    monkeypatch.setattr(lab.ctx.optimization.schedule, "minibatches", 2)
    monkeypatch.setattr(lab.ctx.optimization.schedule, "prompts_per_step", 2)


BY_STEP = ("clip_cov", "high_entropy_tokens")
"""Their tokens are chosen among those of one step, so a smaller step is another choice."""


@pytest.mark.parametrize("method", [method for method in METHODS if method not in BY_STEP])
def test_the_steps_of_a_rollout_share_its_credit_and_add_up_to_the_step_on_all_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    lab, whole = bench(method)
    in_minibatches(lab, monkeypatch)
    parts = []
    for portion in range(2):
        lab.reset()
        parts.append(lab.step(lab.rollout(), portion))
    by_token = lab.ctx.scoring.reduction is Reduction.token
    counts = [part.report.counts.tokens if by_token else part.report.counts.sequences for part in parts]
    total = {
        name: sum(n * part.gradient[name] for n, part in zip(counts, parts, strict=True)) / sum(counts)
        for name in whole.gradient
    }
    assert largest_difference(total, whole.gradient) < TOLERANCE
    assert largest_difference(parts[0].gradient, whole.gradient) > 1e2 * TOLERANCE


@pytest.mark.parametrize("method", ["kl_cov", "clip_cov", "gspo", "soft"])
def test_slices_do_not_change_the_gradient_when_the_policy_has_moved_since_the_rollout(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    lab, _ = bench(method)
    in_minibatches(lab, monkeypatch)
    second = []
    for score_slice in (0, 3):
        lab.reset()
        experience = lab.rollout()
        lab.step(experience)
        experience.tokens.slice_size = score_slice
        second.append(lab.step(experience, 1))
    whole, pieces = second
    assert len(pieces.report.losses) > len(whole.report.losses)
    assert float(whole.report.losses[0].log_ratio_train.abs().max()) > 1e-2
    assert largest_difference(pieces.gradient, whole.gradient) < TOLERANCE
    assert max(float(gradient.abs().max()) for gradient in whole.gradient.values()) > 1e2 * TOLERANCE

"""Groups whose gradient is exactly zero are not run through the model, and nothing else of the step changes; and what a step runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.identical import assert_identical
from support.laboratory import Laboratory, largest_difference
from support.runs import checkpoint_of, configured, metric_lines, only_reward, train, weights_of

DOUBLE = (
    "model.dtype=float64",
    "evaluation.enabled=false",
    "optimization.max_grad_norm=0",
    "optimization.adam_epsilon=1e-3",
    "optimization.prompts_per_step=6",
)
SOME_FLAT = (*DOUBLE, *only_reward("mixed_on_half"))
"""Every completion of about half of the rows earns 1, of the others 0 and 1 by turns."""
QUIET = ("evaluation.enabled=false",)
KL = ("controller=kl", "controller.target=kl_beta", "scoring.kl_beta=0.001")

Build = Callable[..., Laboratory]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def made(*extra: str) -> Laboratory:
        return Laboratory(configured(tmp_path / f"run-{len(list(tmp_path.iterdir()))}", *extra))

    return made


@pytest.mark.parametrize(
    "method",
    [
        ("scoring=dr_grpo",),
        ("scoring=grpo", "scoring.clipping.clip_range=0.01", "optimization.grad_accum_steps=2"),
        ("scoring=dr_grpo", "scoring.equal_groups=drop"),
        ("scoring=maxent", "scoring.weighting.neutral_groups=skip", "scoring.weighting.beta=0.1"),
        ("scoring=maxent_listwise", "scoring.weighting.neutral_groups=skip", "scoring.batching.score_slice=3"),
        ("scoring=cispo",),
    ],
    ids=lambda extra: " ".join(extra),
)
def test_leaving_out_groups_without_signal_changes_nothing_of_the_update(build: Build, method: tuple[str, ...]) -> None:
    outcomes = {}
    for skip in ("true", "false"):
        lab = build(*SOME_FLAT, *method, f"scoring.batching.skip_zero_signal={skip}")
        outcomes[skip] = lab.step(lab.rollout())
    less, whole = outcomes["true"], outcomes["false"]
    assert 0 < less.metrics["scoring/skipped_sequences"] < 24
    assert whole.metrics["scoring/skipped_sequences"] == 0
    assert less.metrics["scoring/fed_tokens"] < whole.metrics["scoring/fed_tokens"]
    assert less.loss == pytest.approx(whole.loss, abs=1e-12)
    assert largest_difference(less.gradient, whole.gradient) < 1e-7
    assert max(float(part.abs().max()) for part in whole.gradient.values()) > 1e-3
    for name, value in whole.metrics.items():
        if name.startswith(("reward/", "advantage/", "loss/", "optim/")) or name == "weights/groups":
            assert less.metrics[name] == pytest.approx(value, abs=1e-7), name


@pytest.mark.parametrize(
    "other",
    [
        ("scoring.kl_beta=0.1",),
        ("scoring.entropy_coef=0.1",),
        ("scoring.token_selection.kind=high_entropy",),
        ("scoring.reduction=micro_batch", "scoring.batching.score_slice=8"),
        ("scoring.advantage=soft",),
        KL,
        ("scoring=maxent", "scoring.weighting.neutral_groups=keep"),
    ],
    ids=" ".join,
)
def test_groups_that_still_act_on_the_update_are_run(build: Build, other: tuple[str, ...]) -> None:
    lab = build(*SOME_FLAT, "scoring=dr_grpo", *other)
    taken = lab.step(lab.rollout())
    assert taken.metrics["reward/equal_groups"] > 0
    assert taken.metrics["scoring/skipped_sequences"] == 0


def test_a_step_in_which_no_group_has_a_signal_runs_nothing(build: Build) -> None:
    lab = build(*DOUBLE, *only_reward("half"), "scoring=dr_grpo", "optimization.zero_signal_step=step")
    taken = lab.step(lab.rollout())
    assert taken.metrics["scoring/forward_passes"] == 0
    assert "scoring/padding_ratio" not in taken.metrics
    assert taken.metrics["optim/gradient_norm"] == 0
    assert set(taken.gradient) == set(taken.weights)
    assert not any(bool(part.any()) for part in taken.gradient.values())


def test_a_run_over_two_passes_is_the_same_run(tmp_path: Path) -> None:
    """Scores at rollout weights and of a reference are left out for the same groups; also through a resume inside a rollout."""
    asked = (*SOME_FLAT, "scoring=maxent", "scoring.weighting.neutral_groups=skip", "scoring.weighting.beta=0.1")
    asked = (
        *asked,
        "optimization.num_iterations=3",
        "optimization.total_training_steps=3",
        "checkpoint.every_n_steps=2",
    )
    weights, passes = {}, {}
    for skip in ("true", "false"):
        train(tmp_path / skip, *asked, f"scoring.batching.skip_zero_signal={skip}")
        weights[skip] = weights_of(checkpoint_of(tmp_path / skip))
        passes[skip] = sum(line["scoring/fed_tokens"] for line in metric_lines(tmp_path / skip))
    assert passes["true"] < passes["false"]
    assert largest_difference(weights["true"], weights["false"]) < 1e-5
    resumed = tmp_path / "resumed"
    train(resumed, *asked, resume_from=tmp_path / "true" / "checkpoints" / "step_2")
    assert_identical(weights_of(checkpoint_of(resumed)), weights["true"])


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        (("scoring=dr_grpo",), [1, 1]),
        (("scoring=maxent",), [1, 1]),
        (("scoring=dr_grpo", "scoring.kl_beta=0.1"), [2, 2]),
        (("scoring=maxent", "scoring.weighting.beta=0.1"), [2, 2]),
        # one at rollout weights for both passes over the rollout
        (("scoring=dr_grpo", "optimization.num_iterations=2"), [2, 1]),
        (("scoring=high_entropy_tokens",), [2, 2]),
        # three slices, and the two that share a group once more before its weights are known
        (("scoring=maxent", "scoring.batching.score_slice=6"), [5, 5]),
        (("scoring=dr_grpo", "scoring.batching.score_slice=6"), [3, 3]),
        (("scoring=maxent", "scoring.batching.score_slice=12"), [2, 2]),
        # tokens are chosen by the same pass that the listwise term takes
        (("scoring=maxent", "scoring.token_selection.kind=high_entropy", "scoring.batching.score_slice=6"), [6, 6]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_step_runs_the_model_no_more_than_it_must(tmp_path: Path, method: tuple[str, ...], passes: list[int]) -> None:
    """Neither old log-probs where the policy is the one that sampled, nor a reference that no coefficient asks for."""
    train(tmp_path / "run", *QUIET, *method, "scoring.batching.max_tokens=0", "scoring.batching.skip_zero_signal=false")
    lines = metric_lines(tmp_path / "run")
    assert [line["scoring/forward_passes"] for line in lines] == passes


def test_padding_is_measured_and_shared_prompts_have_next_to_none(build: Build) -> None:
    """A slice of lengths that differ is padded to its longest row, and where prompts are shared at most to its longest group."""
    ratios = {}
    for shared in (True, False):
        lab = build(*DOUBLE, "scoring=dr_grpo", "generation.max_completion_len=24")
        lab.ctx.scoring.batching.share_prompts = shared
        experience = lab.rollout()
        lengths = experience.tokens.completion_attention_mask.sum(dim=-1)
        taken = lab.step(experience)
        ratios[shared] = taken.metrics["scoring/padding_ratio"]
        if not shared:
            prompt = experience.tokens.prompt_entries[0].length
            rows = experience.scored.repeat_interleave(experience.group_size)
            real = (lengths[rows] + prompt).sum()
            assert ratios[False] == pytest.approx(float(taken.metrics["scoring/fed_tokens"] / real))
    assert ratios[True] == 1
    assert 1 < ratios[False] <= 1.1

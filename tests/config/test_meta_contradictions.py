"""`controller=meta`: its contradictions, word for word."""

from __future__ import annotations

import pytest

from maxent_grpo.config.contradictions import contradictions, warnings
from maxent_grpo.config.controller_meta import MetaControllerConfig
from maxent_grpo.config.load import load_config
from maxent_grpo.config.optimization import OptimizationConfig
from maxent_grpo.errors import ConfigError

MAXENT = ("scoring=maxent", "controller=meta", "run.dir=nowhere")

CASES = [
    (
        ("optimization.prompts_per_step=3",),
        "controller.min_groups=4 exceeds optimization.prompts_per_step=3: no step has that many groups, so nothing would be "
        "adapted; use controller.min_groups=3 or less",
    ),
    (
        ("controller.adapt_beta=true", "controller.beta_min=0"),
        "controller.beta_min=0.0 with controller.adapt_beta=true: beta moves in its logarithm, which has no 0; use "
        "controller.beta_min above 0",
    ),
    (
        ("controller.mode=first_order", "controller.every_n_steps=9"),
        "controller.every_n_steps=9 with controller.mode=first_order: the reward of one rollout is too noisy to follow that "
        "often; use controller.every_n_steps=10 or more, or controller.mode=analytic",
    ),
    (
        ("controller.mode=first_order", "scoring=maxent_listwise", "scoring.clipping.use_clip_objective=true"),
        "controller.mode=first_order differentiates the listwise cross-entropy, and scoring.clipping.use_clip_objective=true "
        "adds a second term that depends on tau: use scoring.clipping.use_clip_objective=false or controller.mode=analytic",
    ),
    (
        ("scoring=dr_grpo",),
        "controller=meta adapts scoring.weighting.tau, which scoring=dr_grpo with scoring.weighting.listwise_coef=0.0 does not "
        "use: use scoring=maxent or controller=fixed",
    ),
    (
        ("scoring.weighting.tau=20",),
        "scoring.weighting.tau=20.0 lies outside controller.tau_min=0.001 and controller.tau_max=10.0: a controller starts "
        "inside its bounds; use scoring.weighting.tau=10.0 or wider bounds",
    ),
    (
        ("controller.tau_min=1e-9",),
        "controller.tau_min=1e-09: below 1e-08 the weights no longer depend on tau, and have no derivative in it; use "
        "controller.tau_min=1e-08 or more",
    ),
    (
        ("controller.adapt_beta=true",),
        "scoring.weighting.beta=0.0 lies outside controller.beta_min=0.0001 and controller.beta_max=10.0: a controller starts "
        "inside its bounds; use scoring.weighting.beta=0.0001 or wider bounds",
    ),
]


@pytest.mark.parametrize(("overrides", "sentence"), CASES, ids=[" ".join(case[0]) for case in CASES])
def test_a_contradiction_is_said_in_one_sentence(overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config([*MAXENT, *overrides])
    assert sentence in str(refusal.value)


def test_a_target_divergence_needs_a_reference() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config([*MAXENT, "controller.adapt_beta=true", "scoring.weighting.beta=0.1",
                     "scoring.reference_logprobs_source=none"])  # fmt: skip
    assert "controller=meta adapts scoring.weighting.beta by the divergence from a reference" in str(refusal.value)


def test_meta_gradients_are_taken_through_adamw_only() -> None:
    config = load_config([*MAXENT, "controller.mode=first_order"])
    config.optimization = OptimizationConfig()
    assert list(contradictions(config)) == [
        "controller.mode=first_order differentiates the update of AdamW, and optimization is OptimizationConfig: use "
        "optimization=adamw or controller.mode=analytic"
    ]


def test_an_interval_longer_than_the_run_is_warned_about() -> None:
    for steps, said in ((10, True), (11, False)):
        config = load_config([*MAXENT, f"optimization.total_training_steps={steps}", "optimization.warmup_steps=1"])
        assert isinstance(config.controller, MetaControllerConfig)
        sentence = f"controller.every_n_steps=10 is not below optimization.total_training_steps={steps}: tau stays as configured"
        assert (sentence in warnings(config)) is said

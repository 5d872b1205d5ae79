"""What a controller cannot be combined with, each with its exact sentence."""

from __future__ import annotations

import pytest

from maxent_grpo.config.contradictions import warnings
from maxent_grpo.config.load import load_config
from maxent_grpo.errors import ConfigError

SENTENCES = {
    ("scoring=dr_grpo", "controller=kl"): [
        "controller=kl adapts scoring.kl_beta, which is 0 and can never grow under controller.law=multiplicative: set "
        "scoring.kl_beta > 0 or controller.law=additive"
    ],
    ("scoring=maxent", "controller=kl", "controller.target=listwise_beta", "controller.law=pi"): [
        "controller=kl adapts scoring.weighting.beta, which is 0 and can never grow under controller.law=pi: set "
        "scoring.weighting.beta > 0 or controller.law=additive"
    ],
    ("scoring=dr_grpo", "controller=kl", "scoring.kl_beta=0.1", "controller.law=halving", "controller.beta_min=0"): [
        "controller.beta_min=0.0 lets scoring.kl_beta fall to 0, which it can never leave under controller.law=halving: use "
        "controller.beta_min=null or controller.law=additive"
    ],
    ("scoring=grpo", "controller=entropy"): [
        "controller=entropy adapts scoring.weighting.tau, which scoring=grpo with scoring.weighting.listwise_coef=0.0 does "
        "not use: use scoring=maxent or controller=fixed"
    ],
    ("scoring=dr_grpo", "controller=effective_size"): [
        "controller=effective_size adapts scoring.weighting.tau, which scoring=dr_grpo with "
        "scoring.weighting.listwise_coef=0.0 does not use: use scoring=maxent or controller=fixed"
    ],
    ("scoring=dr_grpo", "controller=kl", "controller.target=listwise_beta", "controller.law=additive"): [
        "controller=kl adapts scoring.weighting.beta, which scoring=dr_grpo with scoring.weighting.listwise_coef=0.0 does "
        "not use: use scoring=maxent or controller=fixed"
    ],
    ("scoring=dr_grpo", "controller=kl", "controller.law=additive", "scoring.reference_logprobs_source=none"): [
        "controller=kl adapts scoring.kl_beta by the divergence from a reference, which "
        "scoring.reference_logprobs_source=none leaves out: use scoring.reference_logprobs_source=model or controller=fixed"
    ],
    ("scoring=maxent", "controller=entropy", "controller.tau_min=2", "controller.tau_max=1"): [
        "controller.tau_min=2.0 is not below controller.tau_max=1.0: scoring.weighting.tau could not move; use "
        "controller=fixed to keep it"
    ],
    ("scoring=maxent", "controller=entropy", "scoring.weighting.tau=20"): [
        "scoring.weighting.tau=20.0 lies outside controller.tau_min=0.001 and controller.tau_max=10.0: a controller starts "
        "inside its bounds; use scoring.weighting.tau=10.0 or wider bounds"
    ],
    ("scoring=dr_grpo", "controller=kl", "scoring.kl_beta=1e-9"): [
        "scoring.kl_beta=1e-09 lies outside controller.beta_min=1e-06 and controller.beta_max=10.0: a controller starts "
        "inside its bounds; use scoring.kl_beta=1e-06 or wider bounds"
    ],
    (
        *("scoring=maxent", "controller=kl", "controller.target=listwise_beta", "controller.law=additive"),
        *("scoring.weighting.tau=0", "scoring.weighting.beta=0.1"),
    ): [
        "controller.beta_min=0.0 with scoring.weighting.tau=0.0: tau + beta could fall to 0, where the weight exponent "
        "1/(tau+beta) is undefined; use controller.beta_min or scoring.weighting.tau above 0"
    ],
    ("scoring=maxent", "controller=entropy", "controller.schedule.kind=peak", "controller.schedule.horizon=50"): [
        "controller.schedule.peak_step=50 is not before controller.schedule.horizon=50, where the schedule ends: use "
        "controller.schedule.peak_step=49 or less, or controller.schedule.kind=linear"
    ],
    ("scoring=maxent", "controller=effective_size", "generation.num_generations=4"): [
        "controller.target_size=4.0 is not below generation.num_generations=4: only an infinite tau makes all completions "
        "count alike; use a smaller controller.target_size or larger groups"
    ],
    (
        *("scoring=dr_grpo", "controller=kl", "scoring.kl_beta=0.1", "controller.law=pi"),
        *("controller.gain=0", "controller.integral_gain=0"),
    ): [
        "controller.gain=0.0 with controller.integral_gain=0.0: controller.law=pi would move nothing; set one of them above "
        "0 or controller=fixed"
    ],
}


@pytest.mark.parametrize("overrides", SENTENCES, ids=" ".join)
def test_a_controller_that_cannot_work_is_refused(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(list(overrides))
    assert refused.value.problems == SENTENCES[overrides]


@pytest.mark.parametrize(
    "overrides",
    [
        ("scoring=maxent", "controller=entropy"),
        ("scoring=maxent_listwise", "controller=effective_size"),
        ("scoring=grpo", "scoring.weighting.listwise_coef=0.2", "controller=entropy"),
        ("scoring=dr_grpo", "controller=kl", "controller.law=additive"),
        ("scoring=grpo", "controller=kl", "scoring.kl_beta=0.1"),
        ("scoring=maxent", "controller=kl", "controller.target=listwise_beta", "controller.law=additive"),
    ],
    ids=" ".join,
)
def test_a_controller_that_can_work_is_not(overrides: tuple[str, ...]) -> None:
    load_config(list(overrides))


def test_a_warm_up_as_long_as_the_run_is_warned_about() -> None:
    config = load_config(["scoring=maxent", "controller=entropy", "controller.warmup_steps=200"])
    assert warnings(config) == [
        "controller.warmup_steps=200 is not below optimization.total_training_steps=200: tau stays as configured"
    ]

"""Runs of two processes against the same runs of one: losses, gradients, metrics, completions and held-out figures.

In double precision, as in single precision the order of sums alone could change a completion after some steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pytest
from support.each import each_of
from support.equal_record import assert_same_completions, assert_same_evaluations, assert_same_lines, is_close
from support.equal_steps import trained
from support.ranks import call_together
from support.steps import OPTIONS

Case = tuple[str, Sequence[str], Mapping[str, Any]]

PLAIN = ("evaluation.enabled=false", "checkpoint.every_n_steps=null")
UNEVEN = {"data.num_train": 5, "optimization.total_training_steps": 3, "optimization.num_epochs": 2}
"""Rollouts of four prompts and of one: in the second step one process has no group."""
HALF = {
    "reward.functions": {"mixed_on_half": "support.graders:mixed_on_half"},
    "reward.terms": {"mixed_on_half": 1.0},
}
"""Half of the rows have equal rewards, so that a process may have nothing to train."""
INSIDE = {
    "optimization.minibatches": 2,
    "optimization.num_iterations": 2,
    "optimization.grad_accum_steps": 2,
    "optimization.prompts_per_step": 3,
    "data.num_train": 10,
    "optimization.total_training_steps": 6,
}
"""Steps of three prompts and of one inside rollouts of six and of four, each cut into loader batches and trained twice."""
BOTH = {
    "scoring.kl_beta": 0.1,
    "scoring.weighting.beta": 0.05,
    "scoring.entropy_coef": 0.01,
    "scoring.policy_entropy": True,
}

AHEAD = {"scoring.behavior_logprobs_source": "sampler", "scoring.mismatch.mode": "token_truncate"}

SHORT: list[Case] = [
    ("batch statistics and a process without a group", PLAIN, {"scoring": "reinforce_pp", **UNEVEN}),
    ("a controller, a reference, minibatches", PLAIN, {"scoring": "maxent", "controller": "entropy", **BOTH, **INSIDE}),
    ("dynamic sampling, token reduction", PLAIN, {"scoring": "dapo", **HALF, "optimization.total_training_steps": 3}),
    (
        "every kind of evaluation", (),
        {
            "scoring": "dr_grpo", "data.num_eval": 3, "evaluation.seed_eval.enabled": True,
            "evaluation.seed_eval.num_seeds": 2, "evaluation.every_n_steps": 1, "optimization.total_training_steps": 1,
            "evaluation.batch_size": 1,  # two batches for one process, and one for the other
        },
    ),
]  # fmt: skip

CONTROLLED: list[Case] = [
    ("effective size", PLAIN, {"scoring": "maxent_listwise", "controller": "effective_size", "controller.target_size": 2.0, **UNEVEN}),
    ("divergence", PLAIN, {"scoring": "maxent", "controller": "kl", "scoring.kl_beta": 0.1, **UNEVEN}),
    (
        "outer reward, one held-out prompt", PLAIN,
        {
            "scoring": "maxent_listwise", "controller": "meta", "controller.every_n_steps": 1, "controller.num_prompts": 1,
            "controller.min_groups": 1, "optimization.prompts_per_step": 3,
        },
    ),
    (
        "outer reward, three held-out prompts", PLAIN,
        {
            "scoring": "maxent_listwise", "controller": "meta", "controller.every_n_steps": 1, "controller.num_prompts": 3,
            "controller.min_groups": 1, **BOTH,
        },
    ),
]  # fmt: skip
REWARDED: list[Case] = [
    ("silent groups, sequence reduction", PLAIN, {"scoring": "grpo", "scoring.kl_beta": 0.0, **HALF}),
    ("tokens are selected", PLAIN, {"scoring": "kl_cov", "optimization.prompts_per_step": 3}),
    (
        "terms by the batch", PLAIN,
        {"scoring": "dr_grpo", "reward.normalize": "term", "reward.normalize_by": "batch", **UNEVEN},
    ),
    ("the sum by the batch", PLAIN, {"scoring": "dr_grpo", "reward.normalize": "sum", "reward.normalize_by": "batch", **INSIDE}),
    ("an entropy bonus", PLAIN, {"scoring": "grpo", "scoring.policy_entropy_bonus_coef": 0.5, **UNEVEN}),
    ("truncated completions masked", PLAIN, {"scoring": "grpo", "scoring.truncation": "mask_loss", **INSIDE}),
    ("groups without a signal dropped", PLAIN, {"scoring": "dr_grpo", "scoring.equal_groups": "drop", **HALF}),
    ("groups carried over", PLAIN, {"scoring": "dapo", **HALF, **INSIDE, "scoring.dynamic_sampling.carry_over": True}),
    ("rollouts ahead", PLAIN, {"scoring": "grpo", "generation.async_steps": 1, **AHEAD, **INSIDE}),
]  # fmt: skip


def compared(cases: Sequence[Case]) -> list[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Name, record of one process and records of two, of each case."""
    both = call_together("support.equal_steps:trained", cases, timeout=60 + 60 * len(cases))
    alone = trained(cases)
    return [(name, alone[name], [rank[name] for rank in both]) for name, *_ in cases]


def assert_equal(found: tuple[str, dict[str, Any], list[dict[str, Any]]]) -> None:
    _, one, two = found
    assert_same_lines(one["lines"], two[0]["lines"])
    assert two[0]["lines"] == two[1]["lines"], "processes believe in different numbers"
    for rank in two:
        assert len(one["gradients"]) == len(rank["gradients"]) > 0
        for step, (left, right) in enumerate(zip(one["gradients"], rank["gradients"], strict=True)):
            assert left.keys() == right.keys()
            for name, numbers in left.items():
                assert all(map(is_close, numbers, right[name])), f"gradient {step} of {name}: {numbers}, {right[name]}"
    assert_same_completions(list(chain(*one["completions"])), list(chain(*two[0]["completions"])))
    assert_same_evaluations(list(chain(*one["evaluations"])), list(chain(*two[0]["evaluations"])))
    for alone, *shares in zip(one["own_completions"], *(rank["own_completions"] for rank in two), strict=True):
        assert sorted(chain(*shares)) == sorted(alone), "prompts are shared out without repeats or gaps"


def test_two_processes_take_the_steps_of_one() -> None:
    each_of(compared(SHORT), assert_equal, name=lambda found: found[0])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [UNEVEN, INSIDE], ids=["uneven", "inside"])
def test_every_method_takes_the_same_steps_in_two_processes(shape: Mapping[str, Any]) -> None:
    """All but the one whose denominator is that of a slice, which two processes cut differently."""
    methods = [name for name in OPTIONS if name != "bnpo"]
    each_of(
        compared([(name, PLAIN, {"scoring": name, **shape}) for name in methods]),
        assert_equal,
        name=lambda found: found[0],
    )


@pytest.mark.slow
def test_controllers_and_rewards_are_the_same_in_two_processes() -> None:
    each_of(compared([*CONTROLLED, *REWARDED]), assert_equal, name=lambda found: found[0])

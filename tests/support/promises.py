"""What each method promises about its signal, and why the others cannot."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Zero(StrEnum):
    """When completions of equal reward give no gradient at all."""

    group = "each group of equal rewards"
    on_policy = "each group of equal rewards, as long as policy and behaviour policy agree"
    step = "a step all of whose groups have equal rewards"
    never = "never"


class Promise(NamedTuple):
    """One method's promises."""

    shift: bool
    """A constant added to the rewards of a group changes nothing; neutral groups all kept, since their kind is no difference."""
    zero: Zero
    alone: bool = True
    """A completion alone in its group gives no gradient."""
    why: str = ""
    """What stands against the promises that are not made."""


COMPARED = Promise(shift=True, zero=Zero.group)

PROMISES: dict[str, Promise] = {
    "dr_grpo": COMPARED,
    "grpo": COMPARED,
    "bnpo": COMPARED,
    "dapo": COMPARED,
    "rloo": COMPARED,
    "reinforce_pp": Promise(True, Zero.step, why="whitening takes off the mean over the tokens of the whole rollout"),
    "gspo": COMPARED,
    "cispo": COMPARED,
    "sapo": COMPARED,
    "maxent": Promise(True, Zero.never, why="the target of equal rewards is uniform, and the policy is moved to it"),
    "maxent_listwise": Promise(True, Zero.never, why="the target of equal rewards is uniform"),
    "maxent_centered": COMPARED,
    "maxent_is": Promise(
        True, Zero.never, why="every completion is raised by its weight over the sampler's probability"
    ),
    "maxent_cond": Promise(False, Zero.never, why="right answers, told by a threshold, are made equally likely"),
    "soft": Promise(True, Zero.never, why="entropy is part of the reward"),
    "gvpo": Promise(True, Zero.never, why="equal rewards ask for equal probabilities"),
    "xdr": COMPARED,
    "dr_grpo_scaled": COMPARED,
    "seed_grpo": COMPARED,
    "token_maxent": Promise(True, Zero.never, alone=False, why="the entropy bonus does not look at rewards"),
    "uniqueness": Promise(False, Zero.never, why="rewards are divided by how often the answer occurs"),
    "unlikeliness": Promise(
        False, Zero.never, why="rewards are discounted, in proportion, by how likely the completion was"
    ),
    "passk": Promise(False, Zero.group, why="a threshold tells right from wrong"),
    "clip_cov": COMPARED,
    "kl_cov": Promise(
        True, Zero.on_policy, alone=False, why="some tokens are held at the behaviour policy at any reward"
    ),
    "high_entropy_tokens": COMPARED,
}

"""The phases of a step: what each spends its time on. Names of metrics and labels in a profile are made from these."""

from __future__ import annotations

from typing import NamedTuple


class Phase(NamedTuple):
    """What a phase is about, and when it happens; empty for one of every step."""

    about: str
    when: str = ""


_ROLLOUT = "a rollout was sampled"

PHASES: dict[str, Phase] = {
    "prepare": Phase("drawing rows, tensors, credit, targets, and what else of a step has no phase of its own"),
    "rollout": Phase("sampling; of what is sampled while training goes on, the time that was waited for it", _ROLLOUT),
    "reward": Phase("grading", _ROLLOUT),
    "old_policy": Phase("scoring at the weights that a rollout begins to train with, where that is needed", _ROLLOUT),
    "reference": Phase("scoring by the reference", "one is kept, and a rollout was sampled or it moved inside of one"),
    "policy": Phase("scoring by the policy with gradient, the loss, and passes that must come before it"),
    "backward": Phase("backward passes"),
    "optimizer": Phase("clipping the gradient and the optimiser's update"),
    "meta": Phase("the gradient of an outer objective", "controller=meta, an update was due"),
    "sync": Phase("moving the reference towards the policy", "the reference moves after this step"),
    "measure": Phase("the numbers of the step"),
    "evaluation": Phase("held-out measurement; that before training is on the line of step 0", "one was due"),
    "log": Phase("writing the line before this one, with its completions; a profile", "not on a process's first line"),
    "checkpoint": Phase("writing the checkpoint of the step before", "one was due"),
}
"""In the order of a step; what none of them claims is called other."""

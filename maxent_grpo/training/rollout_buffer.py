"""The rollout that training is inside of, and how far it got: saved with a checkpoint, so that resume goes on inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from maxent_grpo.training.credit import GradedRollout
from maxent_grpo.training.experience import Experience
from maxent_grpo.training.sampled_groups import groups_from_tree, groups_to_tree
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.types.rewards import GenerationBatch

Rebuild = Callable[[GenerationBatch, GradedRollout, list[RowRange], Mapping[str, Any]], Experience]
"""Makes an experience again from its sampled part and what was scored at rollout weights."""


class RolloutBuffer:
    """Holds one rollout and hands out its optimiser steps: every portion once per iteration."""

    def __init__(self, num_iterations: int, rebuild: Rebuild) -> None:
        self.num_iterations = num_iterations
        self.num_rollouts = 0
        self._rebuild = rebuild
        self._experience: Experience | None = None
        self._taken = 0

    @property
    def experience(self) -> Experience | None:
        """The rollout in use, None before the first and after the last portion of one."""
        return self._experience

    def put(self, experience: Experience) -> None:
        """Start on a fresh rollout."""
        self._experience, self._taken = experience, 0
        self.num_rollouts += 1

    def replace(self, experience: Experience) -> None:
        """Exchange the rollout in use for the same one with other scores."""
        self._experience = experience

    def take(self) -> RowRange:
        """The groups of the next optimiser step."""
        assert self._experience is not None
        portions = self._experience.portions
        groups = portions[self._taken % len(portions)]
        self._taken += 1
        return groups

    def put_back(self) -> None:
        """As if the last step's groups had not been taken."""
        self._taken -= 1

    def release_if_done(self) -> None:
        """Let go of a rollout whose every portion has been taken ``num_iterations`` times."""
        if self._experience and self._taken >= self.num_iterations * len(self._experience.portions):
            self._experience = None

    def state_dict(self) -> dict[str, Any]:
        """Counters, and the rollout in use as plain lists and tensors."""
        kept = None if self._experience is None else experience_to_tree(self._experience)
        return {"num_rollouts": self.num_rollouts, "taken": self._taken, "experience": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue inside the saved rollout."""
        self.num_rollouts, self._taken = int(state["num_rollouts"]), int(state["taken"])
        tree = state["experience"]
        self._experience = None if tree is None else self._rebuild(*experience_from_tree(tree), tree)


def experience_to_tree(experience: Experience) -> dict[str, Any]:
    """What a rollout cannot make again: texts, tokens, verdicts, and scores taken at rollout weights."""
    reference = experience.reference
    return {
        **groups_to_tree((experience.batch, experience.graded)),
        "portions": [[portion.first, portion.last] for portion in experience.portions],
        "places": list(experience.places),
        "epoch": experience.epoch,
        "step_in_epoch": experience.step_in_epoch,
        "version": experience.policy_version,
        "anchor": experience.anchor_version,
        "earlier_versions": list(experience.earlier_versions),
        "old_logp": experience.old_logp,
        "old_known": experience.old_known,
        "scored": experience.scored,
        "token_entropy_mean": experience.token_entropy_mean,
        "reference_logp": None if reference is None else reference.ref_token_logp,
    }


def experience_from_tree(tree: Mapping[str, Any]) -> tuple[GenerationBatch, GradedRollout, list[RowRange]]:
    """The sampled and graded part of a saved rollout."""
    batch, graded = groups_from_tree(tree)
    return batch, graded, [RowRange(first, last) for first, last in tree["portions"]]

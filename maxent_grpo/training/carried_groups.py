"""Groups that dynamic sampling keeps from one rollout for the next, as checkpoints hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from maxent_grpo.training.sampled_groups import Groups, groups_from_tree, groups_to_tree


@dataclass(frozen=True)
class KeptGroup:
    """One group whose utilities differ."""

    place: int
    """Of its prompt in the stream of rows; no two groups of a run have the same."""
    sampled: Groups
    """The group alone, with its verdicts."""
    version: int
    """Optimiser step whose weights sampled it."""
    logp: Tensor | None = None
    """[G, T of the group] the trainer's log-probs at those weights; None while they are the current ones, and where rollouts are
    sampled ahead: the trainer has other weights by then."""
    token_entropy_mean: Tensor | None = None
    """[G] at those weights, where something asks for it."""


@dataclass
class CarriedGroups:
    """Groups for which the last rollout had no place.

    A rollout trains its oldest groups first, and a draw for what it misses brings fewer groups too many than a rollout has:
    each carried group is therefore trained in the very next rollout.
    """

    groups: list[KeptGroup] = field(default_factory=list)

    def take(self) -> list[KeptGroup]:
        """The groups, oldest first, which are carried no longer."""
        taken, self.groups = self.groups, []
        return taken

    def state_dict(self) -> dict[str, Any]:
        """The groups as plain lists and tensors."""
        return {"groups": [_to_tree(group) for group in self.groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Carry the saved groups."""
        self.groups = [_from_tree(tree) for tree in state["groups"]]


def _to_tree(group: KeptGroup) -> dict[str, Any]:
    return {
        **groups_to_tree(group.sampled),
        "place": group.place,
        "version": group.version,
        "logp": group.logp,
        "token_entropy_mean": group.token_entropy_mean,
    }


def _from_tree(tree: Mapping[str, Any]) -> KeptGroup:
    return KeptGroup(
        int(tree["place"]), groups_from_tree(tree), int(tree["version"]), tree["logp"], tree["token_entropy_mean"]
    )

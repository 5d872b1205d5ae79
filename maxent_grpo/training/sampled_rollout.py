"""A rollout as it was sampled and graded: what training it needs and could not make again, as checkpoints hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from maxent_grpo.training.old_scores import EarlierScores
from maxent_grpo.training.sampled_groups import Groups, groups_from_tree, groups_to_tree
from maxent_grpo.training.scoring.batch import RowRange
from maxent_grpo.training.types.rewards import DrawingReport


@dataclass(frozen=True)
class SampledRollout:
    """Nothing of it is scored or compared yet but what ``earlier`` says."""

    groups: Groups
    """In the order in which they train."""
    portions: list[RowRange]
    """Groups of each optimiser step of one pass over the rollout."""
    places: list[int]
    """Where each group stands in the order of the rollout's rows; no two of all processes have the same."""
    epoch: int
    step_in_epoch: int
    version: int
    """Optimiser step whose weights sampled it, but for the groups carried over."""
    earlier: EarlierScores | None = None
    """Of its first groups, carried over from an earlier rollout, where they were scored at the weights that sampled them."""
    drawing: DrawingReport | None = None
    """How its prompts were drawn; None without dynamic sampling."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """What the sampler counted on the way, by the names of its counters."""


@dataclass
class RolloutAhead:
    """The rollout after the one that trains, with ``generation.async_steps=1``; checkpoints hold it once it has arrived."""

    rollout: SampledRollout | None = None
    """None before the first rollout, while requests are out, and after the last rollout."""
    sent_at: int | None = None
    """Optimiser step after which its requests were sent, while they are out."""

    def state_dict(self) -> dict[str, Any]:
        """The rollout as plain lists and tensors."""
        assert self.sent_at is None, "a checkpoint waits for what is in flight"
        return {"rollout": None if self.rollout is None else _to_tree(self.rollout)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Train the saved rollout next."""
        self.rollout = None if state["rollout"] is None else _from_tree(state["rollout"])


def saved_places(tree: Mapping[str, Any]) -> list[int]:
    """The places of a saved rollout's groups; checkpoints that do not say are of one process, which has them all in order."""
    return [int(place) for place in tree.get("places", range(len(tree["prompts"])))]


def _to_tree(rollout: SampledRollout) -> dict[str, Any]:
    assert rollout.earlier is None, "what is sampled ahead is scored when it trains"
    return {
        **groups_to_tree(rollout.groups),
        "portions": [[portion.first, portion.last] for portion in rollout.portions],
        "places": list(rollout.places),
        "epoch": rollout.epoch,
        "step_in_epoch": rollout.step_in_epoch,
        "version": rollout.version,
        "drawing": None if rollout.drawing is None else asdict(rollout.drawing),
        "counts": dict(rollout.counts),
    }


def _from_tree(tree: Mapping[str, Any]) -> SampledRollout:
    drawing = tree["drawing"]
    return SampledRollout(
        groups_from_tree(tree),
        [RowRange(first, last) for first, last in tree["portions"]],
        saved_places(tree),
        int(tree["epoch"]),
        int(tree["step_in_epoch"]),
        int(tree["version"]),
        drawing=None if drawing is None else DrawingReport(**drawing),
        counts={name: int(count) for name, count in tree["counts"].items()},
    )

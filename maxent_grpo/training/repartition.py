"""Saved groups shared out anew: what some processes held of a rollout, among another number of them.

Everything here is plain trees, as checkpoints hold them. A step trains the same groups whatever the number of processes: those of
each portion are put into one order and dealt out in turn, as the prompts of a fresh rollout are. What was scored at rollout
weights goes with its group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from maxent_grpo.training.sampled_rollout import saved_places
from maxent_grpo.training.types.generation import counted

Tree = Mapping[str, Any]

OF_GROUPS = ("prompts", "row_ids", "answers", "completions")
"""Lists with one entry a group."""
OF_ROWS = (
    *("token_ids", "behaviour_logp", "finish_reason", "policy_version", "utilities"),
    *("modes", "keys", "reasons", "failures", "extra"),
)
"""Lists with one entry a completion."""


@dataclass(frozen=True)
class _Place:
    """Where a group is: the number of its tree, and its number in that tree."""

    tree: int
    group: int


def rollout_share(parts: Sequence[Tree], rank: int, size: int) -> dict[str, Any]:
    """The state of ``RolloutBuffer`` that process ``rank`` of ``size`` continues with, from those of all that saved one."""
    held = [part["experience"] for part in parts]
    experience = None if held[0] is None else _experience_share(held, rank, size)
    return {"num_rollouts": parts[0]["num_rollouts"], "taken": parts[0]["taken"], "experience": experience}


def ahead_share(parts: Sequence[Tree], rank: int, size: int) -> dict[str, Any]:
    """The state of ``RolloutAhead`` that process ``rank`` of ``size`` continues with.

    What samplers counted on the way goes to the first process, put together as it is wherever it is looked at: what each counted by
    itself is added up.
    """
    held = [part["rollout"] for part in parts]
    if held[0] is None:
        return {"rollout": None}
    portions, places = _dealt(held, rank, size)
    counts = {
        name: counted(name, [tree["counts"].get(name, 0) for tree in held]) if rank == 0 else 0
        for name in held[0]["counts"]
    }
    common = {name: held[0][name] for name in ("epoch", "step_in_epoch", "version", "drawing")}
    known = {**_groups(held, places, rank), "portions": portions, **common, "counts": counts}
    return {"rollout": {name: known[name] for name in held[0]}}


def carried_share(parts: Sequence[Tree], rank: int, size: int) -> dict[str, Any]:
    """The state of ``CarriedGroups`` that process ``rank`` of ``size`` continues with: every ``size``-th group, oldest first."""
    groups = sorted((group for part in parts for group in part["groups"]), key=lambda group: group["place"])
    return {"groups": groups[rank::size]}


def _experience_share(trees: Sequence[Tree], rank: int, size: int) -> dict[str, Any]:
    portions, places = _dealt(trees, rank, size)
    shared = _groups(trees, places, rank)
    width = max(map(len, shared["token_ids"]), default=1)
    common = {name: trees[0][name] for name in ("epoch", "step_in_epoch", "version", "anchor")}
    earlier = [trees[place.tree]["earlier_versions"] for place in places]
    known = {
        **shared,
        "portions": portions,
        **common,
        "earlier_versions": [
            versions[place.group]
            for versions, place in zip(earlier, places, strict=True)
            if place.group < len(versions)
        ],
        **_old_scores(trees, places, width),
        "scored": _scored(trees, places) if _all_have(trees, "scored") else None,
        "token_entropy_mean": _of_rows(trees, "token_entropy_mean", places),
        "reference_logp": _of_rows(trees, "reference_logp", places, width),
    }
    return {name: known[name] for name in trees[0]}


def _dealt(trees: Sequence[Tree], rank: int, size: int) -> tuple[list[list[int]], list[_Place]]:
    """The portions of one process, and where their groups come from: every ``size``-th of each portion, in the order of the rows."""
    order = [saved_places(tree) for tree in trees]
    portions: list[list[int]] = []
    places: list[_Place] = []
    for number in range(len(trees[0]["portions"])):
        here = [_Place(which, group) for which, tree in enumerate(trees) for group in range(*tree["portions"][number])]
        own = sorted(here, key=lambda place: order[place.tree][place.group])[rank::size]
        portions.append([len(places), len(places) + len(own)])
        places += own
    return portions, places


def _groups(trees: Sequence[Tree], places: Sequence[_Place], rank: int) -> dict[str, Any]:
    """The groups at some places, in the form of ``groups_to_tree``.

    Numbers that reward functions logged belong to no completion: the first process gets them all.
    """
    rows = [(place.tree, row) for place in places for row in _rows(trees[place.tree], place.group)]
    terms = {name: [trees[tree]["per_term"][name][row] for tree, row in rows] for name in trees[0]["per_term"]}
    names = dict.fromkeys(name for tree in trees for name in tree["logged"])
    logged = {name: [number for tree in trees for number in tree["logged"].get(name, [])] for name in names}
    return {
        **{name: [trees[place.tree][name][place.group] for place in places] for name in OF_GROUPS},
        **{name: [trees[tree][name][row] for tree, row in rows] for name in OF_ROWS},
        "per_term": terms,
        "logged": logged if rank == 0 else {name: [] for name in names},
        "places": [saved_places(trees[place.tree])[place.group] for place in places],
        "group_size": trees[0].get("group_size"),
        "abstentions": sum(math.isnan(value) for values in terms.values() for value in values),
    }


def _old_scores(trees: Sequence[Tree], places: Sequence[_Place], width: int) -> dict[str, Tensor | None]:
    """The trainer's log-probs at the anchor and which rows have them; a process that had none at all has None for both."""
    known = [
        tree["old_known"]
        if tree["old_known"] is not None
        else torch.full((len(tree["token_ids"]),), tree["old_logp"] is not None)
        for tree in trees
    ]
    rows = [row for place in places for row in known[place.tree][_slice(trees, place)].tolist()]
    if not any(rows):
        return {"old_logp": None, "old_known": None}
    like = next(tree["old_logp"] for tree in trees if tree["old_logp"] is not None)
    filled = [
        tree["old_logp"] if tree["old_logp"] is not None else like.new_zeros(len(tree["token_ids"]), 1)
        for tree in trees
    ]
    parts = [_widened(filled[place.tree][_slice(trees, place)], width) for place in places]
    return {"old_logp": torch.cat(parts), "old_known": None if all(rows) else torch.tensor(rows)}


def _of_rows(trees: Sequence[Tree], name: str, places: Sequence[_Place], width: int | None = None) -> Tensor | None:
    """A tensor of completions at some places; None unless every process has one: what some have by chance nothing looks at."""
    if not _all_have(trees, name):
        return None
    nothing = _widened(trees[0][name][:0], width)
    return torch.cat([nothing, *(_widened(trees[place.tree][name][_slice(trees, place)], width) for place in places)])


def _scored(trees: Sequence[Tree], places: Sequence[_Place]) -> Tensor:
    return torch.tensor([bool(trees[place.tree]["scored"][place.group]) for place in places], dtype=torch.bool)


def _all_have(trees: Sequence[Tree], name: str) -> bool:
    return all(tree.get(name) is not None for tree in trees)


def _widened(rows: Tensor, width: int | None) -> Tensor:
    """Padded with zeros, or cut, to the longest completion of where the rows are now; what is cut is padding."""
    return rows if width is None else pad(rows, (0, width - rows.shape[1]))


def _rows(tree: Tree, group: int) -> range:
    size = len(tree["completions"][group])  # of every group
    return range(group * size, (group + 1) * size)


def _slice(trees: Sequence[Tree], place: _Place) -> slice:
    rows = _rows(trees[place.tree], place.group)
    return slice(rows.start, rows.stop)

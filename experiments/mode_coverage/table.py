"""The study's table, ``study.yaml``: which runs there are, and the settings of each.

Loads no torch: a run is named, and written as a preset, before anything is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
TABLE = HERE / "study.yaml"
START = "model.warm_start.seed"
"""The setting that a sweep varies: the pair, by the seed of its warm start."""
MODEL = "model"


@dataclass(frozen=True, slots=True)
class Choice:
    """Options of groups, and settings by dotted path; a later one counts before an earlier one."""

    choose: dict[str, str] = field(default_factory=dict[str, str])
    set: dict[str, Any] = field(default_factory=dict[str, Any])

    def then(self, other: Choice) -> Choice:
        """This one with what ``other`` changes."""
        return Choice({**self.choose, **other.choose}, {**self.set, **other.set})


@dataclass(frozen=True, slots=True)
class Arm:
    """One method with its settings."""

    name: str
    about: str
    choice: Choice
    seed_prefix: str = ""
    """Digits in front of the pair's number in the seed of the run."""
    updates_per_rollout: int = 1
    """Optimiser steps that a rollout is used for: as many times more steps sample the same tokens."""


@dataclass(frozen=True, slots=True)
class Part:
    """Runs that are made together, by one sweep."""

    name: str
    kind: str
    """`confirmatory`, `exploratory`, `ablation` or `reduced`."""
    task: str
    pairs: list[int]
    steps: int
    """Rollouts of each run, and optimiser steps of an arm that uses each once [steps]."""
    arms: list[Arm]
    training_problems: bool = False
    """Whether each run's start and end are asked its training problems as well."""

    @property
    def runs(self) -> int:
        """How many runs are planned."""
        return len(self.arms) * len(self.pairs)


@dataclass(frozen=True, slots=True)
class Study:
    """The whole table."""

    base: Choice
    tasks: dict[str, Choice]
    arms: dict[str, Arm]
    parts: dict[str, Part]

    def preset(self, part: Part, arm: Arm) -> str:
        """The text of the preset of an arm: every setting of its runs but the pair.

        The seed of the run follows ``START``, which the sweep varies, and so does that of the initial weights where a model is
        made here.
        """
        choice = self._of_task(part).then(arm.choice)
        follows = "${" + START + "}"
        settings: dict[str, Any] = {
            **choice.set,
            "optimization.total_training_steps": part.steps * arm.updates_per_rollout,
            "evaluation.every_n_steps": choice.set["evaluation.every_n_steps"] * arm.updates_per_rollout,
            "seed": f"{arm.seed_prefix}{follows}",
        }
        if choice.choose[MODEL] == self.base.choose[MODEL]:
            settings["model.init_seed"] = follows
        tree: dict[str, Any] = {"defaults": [{f"override /{group}": name} for group, name in choice.choose.items()]}
        for path, value in settings.items():
            _put(tree, path.split("."), value)
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)
        return f"# @package _global_\n# {arm.about}\n{text}"

    def completions_of_a_step(self, part: Part) -> int:
        """What a step of the baseline samples; every arm is compared after as many of them as there are steps."""
        settings = self._of_task(part).set
        return settings["generation.num_generations"] * settings["optimization.prompts_per_step"]

    def _of_task(self, part: Part) -> Choice:
        """What all arms of a part have; a task that chooses another model takes none of the base's settings of its model."""
        base, task = self.base, self.tasks[part.task]
        if task.choose.get(MODEL, base.choose[MODEL]) != base.choose[MODEL]:
            kept = {path: value for path, value in base.set.items() if not path.startswith(f"{MODEL}.")}
            base = Choice(base.choose, kept)
        return base.then(task)


def read_study(path: Path = TABLE) -> Study:
    """The table of ``path``.

    Raises:
        ValueError: a part names an arm or a task that there is not.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    arms = {
        name: Arm(
            name,
            entry["about"],
            _choice(entry),
            str(entry.get("seed_prefix", "")),
            int(entry.get("updates_per_rollout", 1)),
        )
        for name, entry in content["arms"].items()
    }
    tasks = {name: _choice(entry) for name, entry in content["tasks"].items()}
    for name, entry in content["parts"].items():
        unknown = [*(set(entry["arms"]) - set(arms)), *({entry["task"]} - set(tasks))]
        if unknown:
            raise ValueError(f"{path}: part {name} names {unknown}, which the table does not have")
    parts = {
        name: Part(
            name,
            entry["kind"],
            entry["task"],
            list(entry["pairs"]),
            int(entry["steps"]),
            [arms[arm] for arm in entry["arms"]],
            bool(entry.get("training_problems", False)),
        )
        for name, entry in content["parts"].items()
    }
    return Study(_choice(content["base"]), tasks, arms, parts)


def _choice(entry: Mapping[str, Any]) -> Choice:
    return Choice(dict(entry.get("choose", {})), dict(entry.get("set", {})))


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value

"""Checkpoints of several processes: the same number of them continues bit for bit, another number within rounding."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranks import call_together
from support.runs import checkpoint_of, completion_lines, metric_lines, only_reward, state_of, train, weights_of
from support.same_run import assert_same_run

from maxent_grpo.training.checkpoint.per_process import PROCESSES

EVERY_STEP = ("checkpoint.every_n_steps=1", "checkpoint.keep_last=0")
OF_PROCESSES = ("scoring/forward_passes", "scoring/fed_tokens", "scoring/scored_tokens")
"""Each process runs passes of its own, also without loss where it has fewer than another, and pads what it has."""


@dataclass(frozen=True)
class Scenario:
    """A run, and the step that it is continued from."""

    name: str
    stop: int
    steps: int
    extra: tuple[str, ...]

    @property
    def overrides(self) -> tuple[str, ...]:
        return (*EVERY_STEP, f"optimization.total_training_steps={self.steps}", *self.extra)


INSIDE_CARRYING = Scenario(
    "inside a rollout, with groups carried over",
    3,
    6,
    (
        *(
            "scoring=dapo",
            *only_reward("mixed_on_half"),
            "data.num_train=60",
            "data.num_vertices=4",
            "optimization.prompts_per_step=3",
        ),
        *("optimization.minibatches=2", "optimization.num_iterations=2", "scoring.policy_entropy_bonus_coef=0.5"),
        *("scoring.kl_beta=0.1", "scoring.reference_sync.every_n_steps=2", "evaluation.enabled=false"),
    ),
)
AHEAD = Scenario(
    "inside a rollout, with another sampled ahead",
    3,
    5,
    (
        *(
            "scoring=dapo",
            *only_reward("mixed_on_half"),
            "data.num_train=60",
            "data.num_vertices=4",
            "optimization.prompts_per_step=3",
        ),
        *("generation.async_steps=1", "scoring.behavior_logprobs_source=sampler", "optimization.minibatches=2"),
        *("scoring.mismatch.mode=sequence_mask", "scoring.policy_entropy_bonus_coef=0.5", "evaluation.enabled=false"),
        *("scoring.kl_beta=0.1", "scoring.reference_sync.every_n_steps=2"),
    ),
)
SECOND_EPOCH = Scenario(
    "evaluated, under a controller, into the second epoch",
    2,
    4,
    (
        *("scoring=maxent", "controller=entropy", "data.num_train=10", "scoring.weighting.beta=0.1"),
        *("evaluation.every_n_steps=2", "checkpoint.best_metric=eval/mean_length", "optimization.weight_decay=0.1"),
    ),
)
MOVING_REFERENCE = Scenario(
    "accumulating, with a moving reference and a short last rollout",
    2,
    5,
    (
        *("scoring=grpo", "data.num_train=13", "optimization.prompts_per_step=5", "optimization.minibatches=2"),
        *("optimization.num_iterations=2", "optimization.grad_accum_steps=2", "optimization.lr_scheduler_type=linear"),
        *("scoring.kl_beta=0.1", "scoring.reference_sync.every_n_steps=2", "scoring.reference_sync.mixing=0.5"),
    ),
)
ADAPTER = Scenario(
    "of an adapter",
    2,
    4,
    (
        *("scoring=dr_grpo", "model.lora.enabled=true", "model.lora.rank=2", "evaluation.enabled=false"),
        *("checkpoint.final_model=true", "optimization.num_iterations=2"),
    ),
)
FIRST = (AHEAD,)
OTHERS = (INSIDE_CARRYING, SECOND_EPOCH, MOVING_REFERENCE, ADAPTER)
ALL = [pytest.param(scenario, id=scenario.name) for scenario in (*FIRST, *OTHERS)]
pytestmark = pytest.mark.slow  # tests/training/test_repartition.py is the short form
FULL = ("scoring=dr_grpo", "evaluation.enabled=false", *EVERY_STEP)
"""A run whose checkpoints do not fit."""


@dataclass(frozen=True)
class Made:
    """The runs of some scenarios: by one process and by two, and each continued by the same number and by the other."""

    base: Path
    said: list[str]
    """What the processes of the run whose checkpoints do not fit ended with."""

    def run(self, scenario: Scenario, name: str) -> Path:
        return self.base / str(scenario.stop) / scenario.name.replace(" ", "-") / name


Make = Callable[[Scenario], Made]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """The runs of a scenario; those that belong together are made once, in one launch."""

    @cache
    def together(scenarios: tuple[Scenario, ...]) -> Made:
        found = Made(tmp_path_factory.mktemp("made"), [])
        wanted: list[tuple[str, tuple[str, ...], str | None]] = []
        for scenario in scenarios:
            train(found.run(scenario, "one"), *scenario.overrides)
            for name, source in (("two", None), ("two, two", "two"), ("one, two", "one")):
                start = None if source is None else str(start_of(found.run(scenario, source), scenario))
                wanted.append((str(found.run(scenario, name)), scenario.overrides, start))
        full = (str(found.base / "full"), FULL, None)
        answers = call_together("support.two_ranks_runs:runs_and_a_full_disk", wanted, full, 30_000, timeout=600.0)
        for scenario in scenarios:
            train(
                found.run(scenario, "two, one"),
                *scenario.overrides,
                resume_from=start_of(found.run(scenario, "two"), scenario),
            )
        assert {tuple(steps) for steps, _ in answers} == {tuple(run.steps for run in scenarios for _ in range(3))}
        found.said.extend(said for _, said in answers)
        return found

    return lambda scenario: together(FIRST if scenario in FIRST else OTHERS)


def start_of(run_dir: Path, scenario: Scenario) -> Path:
    return run_dir / "checkpoints" / f"step_{scenario.stop}"


def assert_close(left: Path, right: Path) -> None:
    """The same completions, and weights and numbers that differ by rounding only."""
    ours, theirs = weights_of(checkpoint_of(left)), weights_of(checkpoint_of(right))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.allclose(weight, theirs[name], rtol=1e-5, atol=1e-5), name
    assert identities(left) == identities(right)
    lines, others = metric_lines(left), metric_lines(right)
    assert [line["step"] for line in lines] == [line["step"] for line in others]
    for line, other in zip(lines, others, strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            if name not in OF_PROCESSES:
                assert math.isclose(value, other[name], rel_tol=1e-5, abs_tol=1e-5), (line["step"], name)


def identities(run_dir: Path) -> list[tuple[Any, ...]]:
    return sorted((line["step"], line["row_id"], line["completion"]) for line in completion_lines(run_dir))


@pytest.mark.parametrize("scenario", ALL)
def test_two_processes_continue_bit_for_bit(made: Make, scenario: Scenario) -> None:
    runs = made(scenario)
    assert_same_run(runs.run(scenario, "two"), runs.run(scenario, "two, two"))
    assert state_of(checkpoint_of(runs.run(scenario, "two"))).extras[PROCESSES] == 2


@pytest.mark.parametrize("name", ["one, two", "two, one"])
@pytest.mark.parametrize("scenario", ALL)
def test_another_number_of_processes_continues_within_rounding(made: Make, scenario: Scenario, name: str) -> None:
    runs = made(scenario)
    assert_close(runs.run(scenario, "one"), runs.run(scenario, name))
    before, now = ("1 process", "2") if name == "one, two" else ("2 processes", "1")
    notes = (runs.run(scenario, name) / "run.log").read_text()
    assert f"saved by {before} and continued by {now}" in notes


@pytest.mark.parametrize("scenario", [ALL[0], ALL[1]])
def test_the_scenarios_stop_where_something_waits(made: Make, scenario: Scenario) -> None:
    states = state_of(start_of(made(scenario).run(scenario, "two"), scenario)).states
    rollouts = [part["experience"] for part in states["rollout"][PROCESSES]]
    assert all(rollout["old_logp"] is not None and rollout["reference_logp"] is not None for rollout in rollouts)
    assert sum(len(rollout["row_ids"]) for rollout in rollouts) == 6
    if scenario is INSIDE_CARRYING:
        assert any(part["groups"] for part in states["carried_groups"][PROCESSES])
    else:
        assert all(part["rollout"] is not None for part in states["rollout_ahead"][PROCESSES])


def test_a_checkpoint_that_does_not_fit_ends_all_processes_with_one_sentence(made: Make) -> None:
    runs = made(AHEAD)
    sentence = "step 1: the checkpoint cannot be written ("
    assert len(runs.said) == 2
    # both meet it, and whichever says so first is named by the other
    assert all(re.sub(r"^process [01] of 2: ", "", said).startswith(sentence) for said in runs.said), runs.said
    assert [path.name for path in (runs.base / "full" / "checkpoints").iterdir()] == []

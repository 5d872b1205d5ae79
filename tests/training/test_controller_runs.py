"""Whole runs in which a controller holds something: the measured quantity goes to its target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.runs import metric_lines, train

from maxent_grpo.errors import CheckpointError

FROZEN = ("evaluation.enabled=false", "optimization.learning_rate=1e-12", "optimization.prompts_per_step=12")
"""A policy that stays, so that only the controller moves what is measured."""


def series(run_dir: Path, name: str) -> list[float]:
    return [line[name] for line in metric_lines(run_dir) if name in line]


def distances(run_dir: Path) -> list[float]:
    """|measured - target| of each step."""
    pairs = zip(series(run_dir, "controller/measured"), series(run_dir, "controller/target"), strict=True)
    return [abs(measured - target) for measured, target in pairs]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("start", [0.01, 3.0])
def test_the_entropy_controller_takes_the_weights_to_their_target(tmp_path: Path, start: float) -> None:
    """From far below and far above, in 16 steps to less than a third of the distance."""
    train(
        tmp_path / "run",
        *(*FROZEN, "scoring=maxent", f"scoring.weighting.tau={start}", "optimization.total_training_steps=16"),
        *("controller=entropy", "controller.learning_rate=2", "controller.ema=0.5", "controller.warmup_steps=2"),
    )
    taus, errors = series(tmp_path / "run", "controller/tau"), distances(tmp_path / "run")
    assert taus[:3] == [start] * 3, "two steps of warm-up, and the first move acts on the step after it"
    assert mean(errors[-6:]) < mean(errors[:3]) / 3
    assert taus[-1] > start if start < 0.1 else taus[-1] < start
    measured, weights = series(tmp_path / "run", "controller/measured"), series(tmp_path / "run", "weights/entropy")
    assert len(measured) == len(weights) == 16


def test_the_effective_size_is_met_in_every_step_that_can(tmp_path: Path) -> None:
    """With two passes over each rollout, both of which use the same tau."""
    train(
        tmp_path / "run",
        *("evaluation.enabled=false", "scoring=maxent", "optimization.total_training_steps=8"),
        *("controller=effective_size", "controller.target_size=2.5", "optimization.num_iterations=2"),
        "scoring.weighting.neutral_groups=skip",
    )
    run = tmp_path / "run"
    sizes, taus = series(run, "controller/measured"), series(run, "controller/tau")
    infeasible, saturated = series(run, "controller/infeasible"), series(run, "controller/saturated")
    met = [size == pytest.approx(2.5, abs=1e-6) for size in sizes]
    assert met.count(False) == saturated[-1] >= infeasible[-1]
    assert met.count(True) >= 6
    assert taus[::2] == taus[1::2]
    assert len(set(taus)) == 4
    # neutral groups are left out of the weights here, so the step's own metric is the mean that was solved for
    assert series(run, "weights/effective_size") == pytest.approx(sizes)


def test_the_kl_controller_holds_the_policy_at_its_distance(tmp_path: Path) -> None:
    """An unheld policy goes beyond twice the target; a coefficient that grows from 0 brings it back."""
    method = ("evaluation.enabled=false", "scoring=dr_grpo", "optimization.total_training_steps=12")
    train(tmp_path / "free", *method, "scoring.reference_logprobs_source=model")
    train(
        tmp_path / "held",
        *method,
        *("controller=kl", "controller.law=additive", "controller.learning_rate=4", "controller.target_kl=0.05"),
    )
    free = series(tmp_path / "free", "policy/kl_to_reference")
    held, betas = series(tmp_path / "held", "policy/kl_to_reference"), series(tmp_path / "held", "controller/kl_beta")
    assert mean(free[-6:]) > 0.1
    assert mean(held[-6:]) < 0.08
    assert betas[0] == betas[1] == 0
    assert betas[-1] > 0.1
    assert series(tmp_path / "held", "controller/measured") == held


def test_the_listwise_beta_takes_the_weights_towards_the_reference(tmp_path: Path) -> None:
    train(
        tmp_path / "run",
        *(*FROZEN, "scoring=maxent", "scoring.weighting.beta=0.01", "optimization.total_training_steps=18"),
        *("controller=kl", "controller.target=listwise_beta", "controller.law=pi", "controller.target_kl=0.2"),
        *("controller.gain=0.1", "controller.integral_gain=0.3"),
    )
    errors, betas = distances(tmp_path / "run"), series(tmp_path / "run", "controller/beta")
    assert mean(errors[-6:]) < mean(errors[:3]) / 3
    assert betas[0] == 0.01 < betas[-1]


def test_neutral_groups_move_nothing(tmp_path: Path) -> None:
    """Every completion earns the same: no step is informative, and each is counted as skipped."""
    equal = ("reward.terms.task=0", "reward.terms.spread=0", "+reward.terms.half=1")
    train(
        tmp_path / "run",
        *("evaluation.enabled=false", "scoring=maxent", "scoring.weighting.neutral_groups=keep", *equal),
        *("+reward.functions.half=support.graders:half", "controller=entropy", "controller.warmup_steps=0"),
    )
    assert series(tmp_path / "run", "weights/groups") == [4, 3], "they do take part in the loss"
    assert series(tmp_path / "run", "controller/tau") == [0.1, 0.1]
    assert series(tmp_path / "run", "controller/skipped") == [1, 2]
    assert series(tmp_path / "run", "controller/measured") == []


def test_a_controller_alone_continues_from_another_run(tmp_path: Path) -> None:
    held = (
        *("evaluation.enabled=false", "scoring=maxent", "controller=entropy", "controller.warmup_steps=1"),
        "controller.learning_rate=2",
    )
    train(tmp_path / "first", *held)
    state = tmp_path / "first" / "controller_state.json"
    kept = json.loads(state.read_text())["state"]
    assert kept["tau"] != 0.1
    train(tmp_path / "second", *held, f"controller.paths.resume_from={state}", "optimization.total_training_steps=1")
    assert series(tmp_path / "second", "controller/tau") == [kept["tau"]]
    after = json.loads((tmp_path / "second" / "controller_state.json").read_text())["state"]
    assert after["num_updates"] == kept["num_updates"] + 1
    with pytest.raises(CheckpointError, match="of kind 'entropy', controller=effective_size cannot continue it"):
        train(
            tmp_path / "third",
            *("scoring=maxent", "controller=effective_size", "controller.target_size=2"),
            f"controller.paths.resume_from={state}",
        )

"""Whole runs with `controller=meta`: tau follows its gradient within its bounds, nothing else is touched, and resume is exact."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.identical import assert_identical
from support.runs import (
    checkpoint_of,
    completion_lines,
    configured,
    inside_run,
    metric_lines,
    state_of,
    train,
    weights_of,
)
from torch.optim.lr_scheduler import LambdaLR

from maxent_grpo.errors import DataError, NonFiniteUpdateError
from maxent_grpo.training.loop import run_training
from maxent_grpo.training.loop_parts import LoopParts
from maxent_grpo.training.optim import set_learning_rate
from maxent_grpo.training.types.runtime import StepResources, TrainingLoopContext

MAXENT = ("scoring=maxent", "evaluation.enabled=false", "optimization.learning_rate=0.002")
META = (*MAXENT, "controller=meta", "controller.min_groups=1")
ANALYTIC = (*META, "controller.every_n_steps=2", "controller.optimizer=sgd", "controller.learning_rate=0.5")
FIRST_ORDER = (*META, "controller.mode=first_order", "controller.num_prompts=6")


def steps(count: int) -> str:
    return f"optimization.total_training_steps={count}"


def assert_tau_descends(lines: list[dict[str, float]], low: float, high: float) -> None:
    """After an update by plain descent tau is tau exp(-rate tau dM/dtau), limited and projected; it stays otherwise."""
    seen = 0
    for before, after in pairwise(lines):
        tau, gradient = before["controller/tau"], before.get("controller/tau_gradient")
        expected = tau
        if gradient is not None:
            seen += gradient != 0
            change = min(max(-0.5 * tau * gradient, -0.1), 0.1)
            expected = min(max(tau * math.exp(change), low), high)
        assert after["controller/tau"] == pytest.approx(expected, rel=1e-12)
        assert low <= after["controller/tau"] <= high
    assert seen >= 2


@pytest.mark.parametrize(
    ("fraction", "sign"), [(0.05, -1), (0.95, 1)], ids=["towards sharper weights", "towards flatter weights"]
)
def test_tau_moves_the_way_the_dual_says(tmp_path: Path, fraction: float, sign: int) -> None:
    extra = (f"controller.target_fraction={fraction}", "scoring.weighting.tau=0.3")
    train(tmp_path / "run", *ANALYTIC, *extra, "controller.tau_min=0.28", "controller.tau_max=0.33", steps(12))
    lines = metric_lines(tmp_path / "run")
    assert_tau_descends(lines, 0.28, 0.33)
    assert sign * (lines[-1]["controller/tau"] - 0.3) > 0.01
    for line in lines:
        if "controller/tau_gradient" in line:
            miss = line["controller/measured"] - line["controller/target"]
            assert line["controller/tau_gradient"] == pytest.approx(miss, abs=1e-12)
    assert lines[-1]["controller/saturated"] >= 1


def test_the_dual_measures_the_entropy_that_the_weights_have(tmp_path: Path) -> None:
    """Where every group that takes part is informative, it is the mean of the weights' entropy over them."""
    train(tmp_path / "run", *ANALYTIC, "scoring.weighting.neutral_groups=skip", steps(4))
    compared = [line for line in metric_lines(tmp_path / "run") if "controller/measured" in line]
    assert compared
    for line in compared:
        assert line["controller/measured"] == pytest.approx(line["weights/entropy"], abs=1e-9)


@pytest.fixture(scope="module")
def first_order(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 21 steps whose tau and beta follow meta-gradients of the reward, with a checkpoint every 5."""
    run_dir = tmp_path_factory.mktemp("first_order") / "run"
    train(run_dir, *BOTH, steps(21))
    return run_dir


BOTH = (
    *FIRST_ORDER,
    "controller.adapt_beta=true",
    "scoring.weighting.beta=0.2",
    "checkpoint.every_n_steps=5",
    "checkpoint.keep_last=0",
)


def test_tau_and_beta_follow_the_meta_gradient(first_order: Path) -> None:
    lines = {line["step"]: line for line in metric_lines(first_order)}
    moved = [step for step, line in lines.items() if "controller/tau_gradient" in line]
    assert moved == [10, 20]
    for name in ("tau", "beta"):
        gradient = lines[10][f"controller/{name}_gradient"]
        change = math.log(lines[11][f"controller/{name}"] / lines[10][f"controller/{name}"])
        # the first step of Adam has the size of its rate
        assert change == pytest.approx(-math.copysign(0.05, gradient), rel=1e-3)
        assert lines[9][f"controller/{name}"] == lines[10][f"controller/{name}"]
    assert 0 <= lines[10]["controller/outer_reward"] <= 1.25


def test_a_resumed_run_is_the_same_run(first_order: Path, tmp_path: Path) -> None:
    """From the step whose update of tau and beta has just been taken, past the next one."""
    train(tmp_path / "run", *BOTH, steps(21), resume_from=first_order / "checkpoints" / "step_10")
    here, there = checkpoint_of(first_order), checkpoint_of(tmp_path / "run")
    assert_identical(weights_of(here), weights_of(there), "weights")
    ours, theirs = state_of(here), state_of(there)
    for name in ours.states:
        assert_identical(ours.states[name], theirs.states[name], name)
    assert metric_lines(first_order) == metric_lines(tmp_path / "run")
    assert completion_lines(first_order) == completion_lines(tmp_path / "run")


def test_measuring_without_moving_is_the_run_of_fixed_coefficients(tmp_path: Path) -> None:
    """A rate too small to change a double leaves tau alone, and the meta-gradient leaves everything else alone."""
    train(tmp_path / "fixed", *MAXENT, steps(12))
    train(tmp_path / "meta", *FIRST_ORDER, "controller.learning_rate=1e-300", steps(12))
    here, there = (checkpoint_of(tmp_path / name) for name in ("fixed", "meta"))
    assert_identical(weights_of(here), weights_of(there), "weights")
    ours, theirs = state_of(here), state_of(there)
    assert theirs.states["controller"]["num_applied"] == 1
    for name in ours.states.keys() - {"controller"}:
        assert_identical(ours.states[name], theirs.states[name], name)

    def shared(name: str) -> list[dict[str, Any]]:
        own = ("controller/skipped", "controller/limited", "controller/saturated")
        only = (*own, "controller/tau_gradient", "controller/beta_gradient", "controller/outer_reward")
        return [{key: v for key, v in line.items() if key not in only} for line in metric_lines(tmp_path / name)]

    assert shared("fixed") == shared("meta")
    assert completion_lines(tmp_path / "fixed") == completion_lines(tmp_path / "meta")


def test_steps_with_too_few_informative_groups_move_nothing_and_are_counted(tmp_path: Path) -> None:
    train(tmp_path / "run", *ANALYTIC, "+reward.terms.half=1", "+reward.functions.half=support.graders:half",
          "reward.terms.task=0", "reward.terms.spread=0", steps(5))  # fmt: skip
    lines = metric_lines(tmp_path / "run")
    assert [line["controller/skipped"] for line in lines] == [0, 1, 1, 2, 2]
    assert {line["controller/tau"] for line in lines} == {0.1}
    assert not [name for line in lines for name in line if name.endswith("_gradient") or name == "controller/measured"]


def test_too_few_training_rows_to_hold_some_out_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(
        "controller.num_prompts=9 held-out prompts beside a step's optimization.prompts_per_step=4 need 13 training prompts, "
        "and there are 12: use more data or smaller numbers"
    )):  # fmt: skip
        train(tmp_path / "run", *FIRST_ORDER[:-1], "controller.num_prompts=9")


def test_the_summary_says_what_is_descended(tmp_path: Path) -> None:
    train(tmp_path / "run", *ANALYTIC, "controller.num_prompts=3", "controller.target_kl=0.2")
    said = (tmp_path / "run" / "run.log").read_text()
    assert "controller: meta" in said
    assert "entropy of the target weights = log c + f (log n - log c), f = 0.5" in said
    assert "sgd in the logarithm at rate 0.5, every 2 steps, changes up to 0.1" in said
    assert "controller.num_prompts=3: controller.mode=analytic does not use it" in said
    assert "controller.target_kl=0.2: controller.adapt_beta is false" in said


def test_weights_that_a_step_broke_are_neither_left_out_nor_saved(tmp_path: Path) -> None:
    """The held-out completions are sampled after the update, which cannot be taken back then."""

    def break_step_ten(ctx: TrainingLoopContext, resources: StepResources, parts: LoopParts) -> str:
        parts.until = 9
        run_training(ctx, resources, parts)
        scheduler = ctx.optimization.handles.lr_scheduler
        assert isinstance(scheduler, LambdaLR)
        scheduler.base_lrs = [1e18]  # of larger weights the squares are infinite, and the norms give 0
        set_learning_rate(ctx.optimization.handles)
        parts.until = None
        with pytest.raises(NonFiniteUpdateError) as caught:
            run_training(ctx, resources, parts)
        return str(caught.value)

    broken = (*FIRST_ORDER, steps(12), "optimization.max_grad_norm=0", "run.on_nonfinite=skip")
    message = inside_run(configured(tmp_path / "run", *broken, "checkpoint.every_n_steps=9"), break_step_ten)
    assert message.startswith("step 10 was taken, and controller=meta finds its weights broken: ")
    assert checkpoint_of(tmp_path / "run").name == "step_9"

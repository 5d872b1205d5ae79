"""Numbers that are NaN or infinite stop the run before the update, or the step is left out and nothing of it stays."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support.identical import assert_identical
from support.laboratory import Laboratory
from support.runs import (
    checkpoint_of,
    completion_lines,
    configured,
    metric_lines,
    only_reward,
    state_of,
    train,
    weights_of,
)

from maxent_grpo.errors import NonFiniteError
from maxent_grpo.training.nonfinite import NonFiniteGuard, ordinal
from maxent_grpo.training.step import train_step

BAD = [2, 5]
RUN = (
    *("scoring=maxent", "controller=effective_size", "controller.target_size=2", "evaluation.enabled=false"),
    *("checkpoint.every_n_steps=1", "checkpoint.keep_last=0", "optimization.total_training_steps=6"),
    *("optimization.lr_scheduler_type=linear", *only_reward("overflows_in_two_steps")),
)
SKIP = "run.on_nonfinite=skip"
OF_THE_UPDATE = ("optimizer", "scheduler", "controller")


@pytest.fixture(scope="module")
def skipping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that leaves two steps out."""
    run_dir = tmp_path_factory.mktemp("skipping") / "run"
    train(run_dir, *RUN, SKIP)
    return run_dir


def test_a_step_that_is_left_out_changes_nothing_and_is_counted(skipping: Path) -> None:
    lines = {line["step"]: line for line in metric_lines(skipping)}
    assert list(lines) == [1, 2, 3, 4, 5, 6]
    left_out = 0.0
    for step in range(2, 7):
        before, after = checkpoint_of(skipping, step - 1), checkpoint_of(skipping, step)
        weights = [weights_of(folder) for folder in (before, after)]
        states = [state_of(folder).states for folder in (before, after)]
        if step in BAD:
            assert_identical(*weights)
            for name in OF_THE_UPDATE:
                assert_identical(states[0][name], states[1][name], name)
        else:
            assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
            assert all(states[0][name] != states[1][name] for name in OF_THE_UPDATE[1:])
    for step, line in lines.items():
        left_out += step in BAD
        assert line["optim/skipped_nonfinite"] == left_out
        assert line["optim/skipped"] == float(step in BAD)
        assert ("loss/total" in line) is (step not in BAD)
        assert all(math.isfinite(value) for value in line.values())
    # the schedule counts updates: the rate after a step that is left out is the one it would have had
    for step in BAD:
        assert lines[step + 1]["optim/learning_rate"] == lines[step]["optim/learning_rate"]
    assert len(completion_lines(skipping)) == 6 * 16


def test_the_counts_go_on_after_a_resume(skipping: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", *RUN, SKIP, resume_from=checkpoint_of(skipping, 4))
    assert metric_lines(tmp_path / "run") == metric_lines(skipping)


def test_the_run_stops_naming_step_term_and_prompt_and_can_go_on_with_the_steps_left_out(
    skipping: Path, tmp_path: Path
) -> None:
    with pytest.raises(NonFiniteError, match=r"step 2, process 0: loss is (nan|inf|-inf); the optimiser step") as stop:
        train(tmp_path / "run", *RUN)
    said = str(stop.value)
    bad = next(line for line in completion_lines(skipping) if line["step"] == 2)
    assert "Of its terms not finite: policy. Not finite: advantages of row " in said
    assert f"advantages of row {bad['row_id']}, completion 1 of 4 ({bad['prompt']!r})" in said
    assert said.count(bad["row_id"]) == 3
    assert "1 more" in said
    saved = f"{tmp_path}/run/checkpoints/step_1"
    assert said.endswith(
        f"run.on_nonfinite=skip. The run is saved at step 1; continue it with checkpoint.resume_from={saved}"
    )
    assert [line["step"] for line in metric_lines(tmp_path / "run")] == [1]
    assert train(tmp_path / "run", *RUN, SKIP, resume_from=tmp_path / "run").global_step == 6
    assert_identical(weights_of(checkpoint_of(skipping)), weights_of(checkpoint_of(tmp_path / "run")))


def test_a_run_without_checkpoints_is_saved_before_the_step_with_the_rollout_that_it_trains(tmp_path: Path) -> None:
    """Inside a rollout of two updates, of which the second one is not finite either: going on takes the same steps."""
    inside = (*RUN, "checkpoint.every_n_steps=9", "optimization.num_iterations=2", "run.max_nonfinite=4")
    train(tmp_path / "skip", *inside, SKIP)
    left_out = [line["step"] for line in metric_lines(tmp_path / "skip") if "loss/total" not in line]
    bad = left_out[0]
    assert bad > 1
    for resume_from in (None, tmp_path / "run"):
        with pytest.raises(NonFiniteError, match=f"step {bad}, .* The run is saved at step {bad - 1}; continue"):
            train(tmp_path / "run", *inside, resume_from=resume_from)
    assert checkpoint_of(tmp_path / "run").name == f"step_{bad - 1}"
    train(tmp_path / "run", *inside, SKIP, resume_from=tmp_path / "run")
    ends = [checkpoint_of(tmp_path / name) for name in ("skip", "run")]
    assert_identical(weights_of(ends[0]), weights_of(ends[1]))
    assert completion_lines(tmp_path / "run") == completion_lines(tmp_path / "skip")


def test_a_gradient_that_is_not_finite_is_traced_to_its_prompts(tmp_path: Path) -> None:
    """Its loss is finite; an own pass over each prompt finds the weight and, of many, the first few."""
    lab = Laboratory(configured(tmp_path / "run", "scoring=maxent", "evaluation.enabled=false"))
    experience, before = lab.rollout(), lab.weights()
    lab.model.get_output_embeddings().weight.register_hook(lambda gradient: gradient * math.inf)
    optimizer, controller = lab.ctx.optimization.handles.base_optimizer, lab.parts.controller.state_dict()
    report = train_step(
        lab.ctx, lab.resources, experience, experience.portions[0], lab.parts.controller, lab.parts.clock,
        step=1, skip_nonfinite=True,
    )  # fmt: skip
    assert report.nonfinite is not None
    assert "gradient norm is nan" in report.nonfinite
    trained = [group[0].row_id for group, kept in zip(experience.batch.records, experience.scored, strict=True) if kept]
    assert f"in lm_head.weight, the gradients of: row {trained[0]} (" in report.nonfinite.replace(
        "model.embed_tokens.weight", "lm_head.weight"
    )
    assert report.nonfinite.count("row coloring") == min(3, len(trained))
    assert_identical(lab.weights(), before)
    assert optimizer.state_dict()["state"] == {}
    assert all(parameter.grad is None for parameter in lab.model.parameters())
    assert lab.parts.controller.state_dict() == controller


def test_steps_in_a_row_are_counted_anew_after_one_that_was_taken() -> None:
    guard = NonFiniteGuard(skip=True, most_in_a_row=2)
    for problem in ("a", "b", None, "c", "d"):
        guard.see(problem)
    assert guard.metrics() == {"optim/skipped_nonfinite": 4.0}
    again = NonFiniteGuard(skip=True, most_in_a_row=2)
    again.load_state_dict(guard.state_dict())
    with pytest.raises(
        NonFiniteError, match=r"e It is the 3rd step in a row, and run\.max_nonfinite=2 may be left out"
    ):
        again.see("e")
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 111)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th")
    ]

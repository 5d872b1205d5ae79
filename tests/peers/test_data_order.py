"""Complaints about which rows are trained, in which order, and what a stop in between does to that.

Rows that are rendered before training are proved in ``tests/training/test_resume_exact.py``, at every step, in the second epoch
and inside a rollout; here they are those of a long data set, rendered when they are drawn, of which a third is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from support.many_rows import MadeRows, MadeTask
from support.runs import checkpoint_of, completion_lines, configured, metric_lines, state_of, train
from support.same_run import assert_same_run

from maxent_grpo.errors import DataError
from maxent_grpo.training import setup
from maxent_grpo.training.setup import run_from_config

LONG = (
    *("scoring=grpo", "scoring.kl_beta=0.1", "evaluation.enabled=false", "data.render_ahead=0"),
    *("generation.max_prompt_len=10", "optimization.prompts_per_step=3", "optimization.minibatches=2"),
    *("optimization.num_iterations=2", "checkpoint.every_n_steps=1", "checkpoint.keep_last=0"),
    "optimization.total_training_steps=10",
)
"""Rollouts of six prompts for four steps each; an epoch of 14 rows has 9 that are short enough."""
STEPS = 10

Straight = Callable[[], Path]


@pytest.fixture(autouse=True)
def _rows_made_when_asked_for() -> Iterator[None]:
    with patch.object(setup, "build_task", lambda data: MadeTask(MadeRows(14), [])):
        yield


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """The directory of the straight run, made once."""

    @cache
    def run() -> Path:
        run_dir = tmp_path_factory.mktemp("straight") / "run"
        train(run_dir, *LONG)
        return run_dir

    return run


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step in (2, 5, 8) else pytest.mark.slow) for step in range(1, STEPS)]
)
def test_a_run_over_a_long_data_set_continues_with_the_rows_that_come_next(
    straight: Straight, tmp_path: Path, step: int
) -> None:
    """Complaints 54, 55 and 56 (huggingface/accelerate#4195, huggingface/trl#3247, dllm-reasoning/d1#14,

    allenai/open-instruct PR #1523, verl-project/verl#1425): a resumed run replays the order of the first epoch, repeats or
    skips prompts, or draws anew inside a rollout. Stopped after any step it is the straight run, bit for bit.
    """
    train(tmp_path / "run", *LONG, resume_from=straight() / "checkpoints" / f"step_{step}")
    assert_same_run(straight(), tmp_path / "run")


def test_the_straight_run_gets_where_it_can_go_wrong(straight: Straight) -> None:
    """It reaches the second epoch and passes rows over, and every row of an epoch that is short enough is sampled once."""
    lines = metric_lines(straight())
    assert [line["data/epoch"] for line in lines] == [0] * 4 + [0] * 2 + [1] * 4
    dropped = [line["data/dropped_prompts"] for line in lines]
    assert dropped == sorted(dropped)
    assert dropped[0] < dropped[5] == 5 < dropped[-1]
    inside = [
        state_of(checkpoint_of(straight(), step)).states["rollout"]["experience"] is not None
        for step in range(1, STEPS + 1)
    ]
    assert inside == [True, True, True, False, True, False, True, True, True, False]
    first_epoch = {(line["row_id"], line["step"] <= 4) for line in completion_lines(straight()) if line["step"] <= 6}
    assert Counter(row_id for row_id, _ in first_epoch) == {f"row-{n}": 1 for n in range(14) if n % 3}


def test_fewer_rows_than_a_step_takes_are_refused_with_both_numbers(tmp_path: Path) -> None:
    """Complaint 59: a data set smaller than a batch gives an epoch of no steps, in silence."""
    config = configured(tmp_path / "run", *LONG, "optimization.prompts_per_step=15")
    with pytest.raises(DataError, match=r"14 training prompts are fewer than .* optimization.prompts_per_step=15"):
        run_from_config(config)

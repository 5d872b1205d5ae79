"""The soft penalty of long completions, in runs: what it is, where it acts, and that training gives way to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import completion_lines, configured, metric_lines

from maxent_grpo.errors import GenerationError
from maxent_grpo.training.setup import run_from_config

LIMIT, GROUP = 4, 4
BASE = ("scoring=dr_grpo", "evaluation.enabled=false", "model.dtype=float64")


def run(run_dir: Path, *extra: str, grader: str = "spread", **settings: Any) -> list[dict[str, Any]]:
    """The completions of a small run whose only reward is a function of ``support.graders``."""
    reward = {"reward.functions": {grader: f"support.graders:{grader}"}, "reward.terms": {grader: 1.0}}
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    run_from_config(configured(run_dir, *BASE, *extra, settings={**reward, **dotted}))
    return completion_lines(run_dir)


def penalty(num_tokens: int, buffer: int) -> float:
    """DAPO's, written out: 0 up to the buffer, then linear down to -1 at the limit."""
    inside = num_tokens - (LIMIT - buffer)
    return 0.0 if inside <= 0 else -inside / buffer


@pytest.mark.parametrize(("buffer", "weight"), [(2, 1.0), (3, 0.5), (4, 2.0)])
def test_advantages_are_those_of_the_penalised_utility(tmp_path: Path, buffer: int, weight: float) -> None:
    shaping = {"scoring__shaping__overlong_buffer": buffer, "scoring__shaping__overlong_weight": weight}
    rows = run(tmp_path / "run", **shaping, optimization__total_training_steps=1)
    assert {row["num_tokens"] for row in rows} >= {1, LIMIT}
    for at in range(0, len(rows), GROUP):
        group = rows[at : at + GROUP]
        assert [row["utility"] for row in group] == [row["rewards"]["spread"] for row in group], "recorded unshaped"
        shaped = [row["utility"] + weight * penalty(row["num_tokens"], buffer) for row in group]
        expected = [value - sum(shaped) / GROUP for value in shaped]
        assert [row["advantage"] for row in group] == pytest.approx(expected, abs=1e-12)


def test_training_shortens_completions_that_nothing_but_their_length_tells_apart(tmp_path: Path) -> None:
    settings = {"scoring__shaping__overlong_buffer": LIMIT, "optimization__total_training_steps": 12}
    run(tmp_path / "run", grader="half", **settings)
    lengths = [line["completion/mean_length"] for line in metric_lines(tmp_path / "run")]
    assert sum(lengths[-3:]) / 3 < sum(lengths[:3]) / 3 - 0.5
    for line in metric_lines(tmp_path / "run"):
        assert line["reward/mean"] == 0.5
        assert line["reward/shaped_mean"] == pytest.approx(0.5 - line["completion/mean_length"] / LIMIT)


def test_a_penalty_makes_no_signal_of_a_group_whose_answers_are_worth_the_same(tmp_path: Path) -> None:
    """Dynamic sampling looks at utilities before shaping, as DAPO does at right and wrong."""
    dapo = {
        "scoring__shaping__overlong_buffer": 2,
        "scoring__dynamic_sampling__enabled": True,
        "scoring__dynamic_sampling__max_refill": 0,
    }
    with pytest.raises(GenerationError, match="0 of 4 prompts, drawn in 1 rounds"):
        run(tmp_path / "run", grader="half", **dapo)

"""What reward functions return by mistake, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import configured

from maxent_grpo.config.load import load_config, warnings
from maxent_grpo.errors import RewardError
from maxent_grpo.training.setup import run_from_config

MISTAKES = {
    "def f(completions): return ['1'] * len(completions)": "returned '1', which is not a number",
    "def f(completions): pass": "it returned None: return a list with one value for each completion",
    "def f(solution_str, ground_truth): pass": "it returned None: a function in verl's style returns a number",
    "def f(solution_str, ground_truth): return {'scor': 1}": "it returned a dict with scor, but without 'score'",
}


@pytest.mark.parametrize("code", MISTAKES)
def test_a_wrong_return_is_named(code: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code + "\n")
    function = f"reward.functions.mine={tmp_path / 'mine.py'}:f"
    with pytest.raises(RewardError, match=MISTAKES[code]):
        run_from_config(configured(tmp_path / "run", "evaluation.enabled=false", "reward.terms.mine=1", function))


def test_weights_under_which_nothing_counts_as_right_are_warned_of() -> None:
    [warning] = warnings(load_config(["reward.terms.task=0.5", "run.dir=nowhere"]))
    assert warning == (
        "reward.terms={task: 0.5} adds up to at most 0.5, below scoring.weighting.right_threshold=0.999: no completion will "
        "count as right; set scoring.weighting.right_threshold below 0.5"
    )
    assert warnings(load_config(["reward.terms.task=0.5", "reward.terms.format=0.5", "run.dir=nowhere"])) == []


def test_a_function_that_abstains_on_everything_is_warned_of_at_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(completions): return [None] * len(completions)\n")
    only = ("reward.terms.task=0", "reward.terms.spread=0", "reward.terms.mine=1")
    run = configured(
        tmp_path / "run", "evaluation.enabled=false", f"reward.functions.mine={tmp_path / 'mine.py'}:f", *only,
        settings={"reward.terms": {"mine": 1.0}, "reward.functions": {"mine": f"{tmp_path / 'mine.py'}:f"}},
    )  # fmt: skip
    run_from_config(run)
    log = (tmp_path / "run" / "run.log").read_text()
    assert log.count("every reward term abstained on every completion") == 1

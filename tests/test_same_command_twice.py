"""The same command, typed twice, gives the same numbers: in two processes that share nothing, hashes of text included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import SMALL, completion_lines, evaluation_lines, metric_lines, weights_of
from support.same_run import assert_same_run

import maxent_grpo
from maxent_grpo.config.compose import config_directory
from maxent_grpo.training.checkpoint.store import find_checkpoint

ROOT = config_directory().parent
COMMAND = [
    *SMALL,
    "seed=5",
    "optimization.total_training_steps=3",
    "reward.terms.regex=0.5",
    "reward.regex.pattern=R",
    "evaluation.every_n_steps=2",
    "reward.terms.wavers=0.1",
    "reward.functions.wavers=support.reward_functions:wavers",
]


def typed(run_dir: Path, hash_seed: int, *more: str) -> Path:
    """Run the command in a process whose texts have hashes of their own."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }
    command = [sys.executable, str(ROOT / "train.py"), *COMMAND, *more, f"run.dir={run_dir}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return run_dir


def assert_same_figures(first: Path, second: Path) -> None:
    assert_same_run(first, second)
    assert evaluation_lines(first) == evaluation_lines(second)
    assert len(metric_lines(first)) == 4
    assert len(completion_lines(first)) == 3 * 16
    assert len({line["rewards"]["wavers"] for line in completion_lines(first)}) > 40, "it draws anew"
    assert any(tensor.abs().sum() > 0 for tensor in weights_of(find_checkpoint(first)).values())


def test_another_process_gives_what_this_one_gives_with_workers(tmp_path: Path) -> None:
    workers = "reward.workers=2"
    maxent_grpo.run([*COMMAND, workers, f"run.dir={tmp_path / 'a'}"])
    own = os.environ.get("PYTHONHASHSEED", "random")
    assert_same_figures(tmp_path / "a", typed(tmp_path / "b", 2 if own == "1" else 1, workers))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [(), ("reward.workers=2",), ("scoring=dapo", "controller=kl", "scoring.kl_beta=0.1", "reward.workers=1")],
    ids=["alone", "with workers", "with dynamic sampling and a controller"],
)
def test_two_processes_give_equal_runs_bit_for_bit(tmp_path: Path, more: tuple[str, ...]) -> None:
    first, second = (typed(tmp_path / name, hash_seed, *more) for name, hash_seed in (("a", 1), ("b", 2)))
    assert_same_figures(first, second)

"""vLLM in the trainer's own process, by the command a user types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import completion_lines, metric_lines, overrides
from support.vllm_policy import HAS_VLLM, NEEDS_VLLM
from support.vllm_runs import LEARNING, assert_groups_are_whole

from maxent_grpo.training.generation.vllm.weights import PREFIX, SHARED_MEMORY

pytestmark = pytest.mark.skipif(not HAS_VLLM, reason=NEEDS_VLLM)

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
"""The graders of the small run are imported from the tests."""
COLOCATED = (
    *LEARNING,
    "generation.vllm_mode=colocate",
    "generation.temperature=0.7",
    "generation.top_p=0.9",
    "logging.console=plain",
    "run.num_threads=1",
)


def command(run_dir: Path, *extra: str) -> list[str]:
    """The command line of a small run."""
    return [sys.executable, str(ROOT / "train.py"), *overrides(run_dir, *extra)]


def run(run_dir: Path, *extra: str) -> str:
    """Run it to its end; returns what it printed."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command(run_dir, *extra), env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True) as process:
        said, failed = process.communicate(timeout=580)
    assert process.returncode == 0, said + failed
    assert not list(SHARED_MEMORY.glob(f"{PREFIX}{process.pid}_*")), "the snapshots went with the run"
    return said


def test_a_colocated_engine_trains(tmp_path: Path) -> None:
    said = run(tmp_path / "run", *COLOCATED)
    assert "vLLM: starting the engine in this process" in said
    steps = [line for line in metric_lines(tmp_path / "run") if line["step"] > 0]
    assert [line["generation/weight_syncs"] for line in steps] == [1] * 6
    # steps whose groups have no signal are not scored
    gaps = [line["generation/logprob_gap"] for line in steps if "generation/logprob_gap" in line]
    assert len(gaps) >= 2
    assert max(gaps) < 1e-3
    assert steps[-1]["reward/mean"] > steps[0]["reward/mean"] + 0.2
    assert_groups_are_whole(tmp_path / "run", steps=6, group=16)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_resumes_into_it(tmp_path: Path) -> None:
    run(tmp_path / "first", *COLOCATED)
    run(tmp_path / "second", *COLOCATED)
    run(tmp_path / "third", *COLOCATED, f"checkpoint.resume_from={tmp_path}/first/checkpoints/step_3")
    for name in ("second", "third"):
        assert metric_lines(tmp_path / name) == metric_lines(tmp_path / "first")
        assert completion_lines(tmp_path / name) == completion_lines(tmp_path / "first")

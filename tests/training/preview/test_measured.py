"""The estimate against the memory that real runs take, each in a process of its own with the allocator as it is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "measured_run.py"
UNITS = {"MiB": 2**20, "GiB": 2**30}

OWN_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""Every block is one of the system's own, for the estimate as for the run.

What the many tensors of several slices, or of an adapter, leave unusable between blocks of the heap is not estimated, and is up to a
half as much again.
"""
TWO_STEPS = ("optimization.total_training_steps=2", "optimization.warmup_steps=0", "logging.console=silent")
SMOL = (
    "model=smol_sized",
    "data.num_vertices=12",
    "data.num_hidden=3",
    "data.max_modes=27",
    "data.num_train=8",
    "generation.num_generations=8",
    "generation.max_completion_len=48",
    "generation.allowed_tokens=[]",
    "optimization.prompts_per_step=4",
    "evaluation.enabled=false",
    "logging.report=false",
    # untrained weights earn nothing, and groups without a signal would not be run
    "scoring.batching.skip_zero_signal=false",
    "optimization.zero_signal_step=step",
)

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


def run(*arguments: str, malloc: dict[str, str] | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | (malloc or {})
    command = [sys.executable, str(SCRIPT), *TWO_STEPS, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def estimated_peak(text: str) -> float:
    found = re.search(r"^  peak +([\d.,]+) (MiB|GiB)", text, flags=re.MULTILINE)
    assert found is not None, text
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def measured_peak(text: str) -> float:
    return float(text.rsplit("peak memory ", 1)[1])


def check(folder: Path, *arguments: str, malloc: dict[str, str] | None = None) -> None:
    placed = (*arguments, f"run.dir={folder / 'run'}")
    estimate = estimated_peak(run(*placed, "run.dry=true", malloc=malloc))
    measured = measured_peak(run(*placed, malloc=malloc))
    print(f"estimated {estimate / 2**20:.0f} MiB, measured {measured / 2**20:.0f} MiB")
    assert estimate == pytest.approx(measured, rel=0.2)


@pytest.mark.slow
def test_the_default_run_with_its_evaluation_takes_what_is_estimated(tmp_path: Path) -> None:
    """The evaluation's key-value cache and the libraries are most of it; the warm start is one of few steps."""
    check(tmp_path, "model.warm_start.steps=3", f"model.warm_start.cache_dir={tmp_path / 'cache'}")


@pytest.mark.slow
def test_a_model_of_135_million_parameters_takes_what_is_estimated(tmp_path: Path) -> None:
    """Gradients, activations and moments are most of it."""
    check(tmp_path, *SMOL, malloc=OWN_BLOCKS)


@pytest.mark.slow
def test_an_adapter_on_a_model_of_135_million_parameters_takes_what_is_estimated(tmp_path: Path) -> None:
    """One base, also as the reference; gradients and moments of the adapter only; the merged weights at the end."""
    half = ("optimization.prompts_per_step=2", "generation.max_completion_len=24")
    check(
        tmp_path,
        *SMOL,
        *half,
        "model.lora.enabled=true",
        "scoring.kl_beta=0.1",
        malloc=OWN_BLOCKS,
    )

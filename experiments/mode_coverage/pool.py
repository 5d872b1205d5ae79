"""What a run's checkpoints come to on the problems that they were trained on: problems learnt by heart, and what was forgotten of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.mode_coverage.table import HERE

TASK = "pool"
"""The task whose runs are asked their training problems."""
FOLDER = "trained_problems"


def trained_figures(run: Path, steps: list[int], *settings: str) -> dict[int, dict[str, float]]:
    """The figures of `evaluate split=train` of a run's start and of its checkpoints of ``steps``, by step.

    Asked once, with ``settings`` beside the run's own, and kept in the run's directory.

    Raises:
        subprocess.CalledProcessError: the evaluation failed, as where a checkpoint is gone.
    """
    path = run / FOLDER / "evaluation.json"
    if not path.is_file() or set(_figures(path)) != {0, *steps}:
        weights = ["start", *map(str, steps)]
        command = [sys.executable, "-m", "maxent_grpo", "evaluate", *(f"run={run}@{each}" for each in weights)]
        subprocess.run(
            [*command, "split=train", f"output={run / FOLDER}", *settings],
            check=True, cwd=HERE.parents[1], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return _figures(path)


def _figures(path: Path) -> dict[int, dict[str, float]]:
    models = json.loads(path.read_text(encoding="utf-8"))["models"]
    return {
        int(model["step"] or 0): {
            f"eval/{name}": _mean(value) for name, value in (model["figures"] | model["others"]).items()
        }
        for model in models
    }


def _mean(value: float | Mapping[str, Any]) -> float:
    return float(value["mean"] if isinstance(value, Mapping) else value)

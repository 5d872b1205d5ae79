"""The same run by one process and by several of one thread each, with one batch between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import steps
from benchmarks.process import cpu_seconds

DROP = 2
"""First steps that are not counted."""
REPOSITORY = Path(__file__).resolve().parents[1]
MIB = 2**20
SHOWN = 2000
"""Last characters of a failed launch that are told."""


@dataclass(frozen=True)
class Work:
    """Steps of the tiny Qwen2 on ``prompts`` prompts, shared out among ``processes`` processes."""

    processes: int = 1
    prompts: int = 8
    steps: int = 12
    laps: int = 1
    """Of a measurement; always one launch."""


def measure(work: Work, root: Path, run_dir: Path) -> dict[str, Any]:
    """Wall seconds of the quickest step and the main process's peak memory, as the run records them; CPU seconds of all processes."""
    step = steps.Work(prompts=work.prompts, steps=work.steps)
    typed = steps.overrides(step, steps.prepare(step, root), run_dir)
    program = [str(REPOSITORY / "train.py"), *typed]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={work.processes}"]
    before = cpu_seconds()
    done = subprocess.run(
        [sys.executable, *(launcher if work.processes > 1 else []), *program],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout)[-SHOWN:])
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    if len(lines) != work.steps:
        raise RuntimeError(f"{work.processes} processes recorded {len(lines)} lines of {work.steps} steps")
    counted = lines[DROP:]
    return {
        # every step does the same work, and what else the machine does only adds to its wall time
        "seconds": [min(line["time/step_seconds"] for line in counted)],
        "work": [1.0],
        "drop": 0,
        "base": 0,
        "peak": int(max(line["memory/peak_rss_mib"] for line in counted) * MIB),
        "launch_cpu_seconds": cpu_seconds() - before,
        "loss": lines[0]["loss/total"],
    }

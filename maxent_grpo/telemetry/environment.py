"""What a run was made in, beside its settings and versions: command line, code, seeds, machine and threads.

``environment.json`` holds it, and ``code.diff`` what the code has on top of its commit; ``docs/reproduce.md`` says how a run is
made again from them. Versions of packages stand in ``versions.json``.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from maxent_grpo.config.secrets import redacted_word
from maxent_grpo.report.atomic import write_atomically
from maxent_grpo.report.read import DIFF_FILE, ENVIRONMENT_FILE
from maxent_grpo.telemetry.checkout import Checkout, current_checkout
from maxent_grpo.telemetry.hardware import cores, gpus, memory, threads
from maxent_grpo.telemetry.matmul_peak import processor_name

FORMAT = 1
DETERMINISM_VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE")
"""Variables of the environment that can decide about numbers, beside those of threads."""


def write_environment(run_dir: Path, settings: Mapping[str, Any], *, num_threads: int | None, on_gpu: bool) -> None:
    """Keep what this process runs in; that of an earlier part of the run is replaced.

    Args:
        run_dir: the run directory.
        settings: the resolved settings as nested plain values, of which the seeds are taken.
        num_threads: `run.num_threads`, which torch is told later than this is written.
        on_gpu: whether the run may use GPUs; otherwise none is looked for, which would take memory on it.
    """
    checkout = current_checkout()
    content = environment(settings, checkout, num_threads=num_threads, on_gpu=on_gpu)
    text = json.dumps(content, indent=1) + "\n"
    write_atomically(run_dir / ENVIRONMENT_FILE, lambda file: file.write(text.encode("utf-8")))
    if checkout.diff:
        write_atomically(run_dir / DIFF_FILE, lambda file: file.write(checkout.diff))
    else:
        (run_dir / DIFF_FILE).unlink(missing_ok=True)


def environment(
    settings: Mapping[str, Any], checkout: Checkout, *, num_threads: int | None, on_gpu: bool
) -> dict[str, Any]:
    """What ``environment.json`` holds; secrets in the command line are hidden."""
    counts = threads()
    sizes = memory()
    return {
        "format": FORMAT,
        "command": [redacted_word(word) for word in sys.orig_argv],
        "directory": os.getcwd(),
        "code": {**checkout.facts, "diff": DIFF_FILE if checkout.diff else None},
        "seeds": dict(_seeds(settings, "")),
        "machine": {
            "platform": platform.platform(),
            "processor": processor_name(),
            "cores": cores(),
            "memory_gib": {name: _rounded(sizes[name]) for name in ("total", "cgroup_limit")},
            "gpus": gpus() if on_gpu else {},
        },
        "threads": counts | ({"torch": num_threads} if num_threads is not None else {}),
        "variables": {name: os.environ.get(name) for name in DETERMINISM_VARIABLES},
    }


def _rounded(size: float | None) -> float | None:
    return None if size is None else round(size, 2)


def _seeds(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, int]]:
    """Dotted path and value of every setting that is a seed."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _seeds(value, f"{prefix}{name}.")
        elif isinstance(value, int) and (name == "seed" or name.endswith("_seed")):
            yield f"{prefix}{name}", value

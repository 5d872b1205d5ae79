"""How fast this machine multiplies matrices: measured once for each machine, number of threads, type and torch, and kept."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

from maxent_grpo.config.model import CACHE
from maxent_grpo.report.atomic import write_atomically

if TYPE_CHECKING:
    import torch

PEAKS_FILE = "matmul_peaks.json"
MATRIX, LARGEST_MATRIX = 128, 4096
"""Side of the square matrices that are multiplied, at first and at most."""
BRIEFLY = 0.3
"""Time that a run takes for a measurement that nobody has made yet [s]."""


def matmul_gflops(dtype: str, seconds: float, device: torch.device) -> float:
    """Multiplications and additions of square matrices per second [GFLOP/s], the best of rounds within ``seconds``.

    The matrices start small and grow while a round is short: a type without instructions of its own is a thousand times
    slower than others.
    """
    import torch

    best, side, end = 0.0, MATRIX, time.perf_counter() + seconds
    left = torch.ones((side, side), dtype=getattr(torch, dtype), device=device)
    while best == 0.0 or time.perf_counter() < end:
        started = time.perf_counter()
        _ = left @ left
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - started
        best = max(best, 2 * side**3 / taken / 1e9)
        if taken < seconds / 100 and side < LARGEST_MATRIX:
            side *= 2
            left = torch.ones((side, side), dtype=left.dtype, device=device)
    return best


def machine_key(dtype: str, device: torch.device) -> str:
    """What a peak belongs to: processor or GPU, threads of torch, type and version of torch."""
    import torch

    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {dtype}, torch {torch.__version__}"
    return f"{processor_name()}, {torch.get_num_threads()} threads, {dtype}, torch {torch.__version__}"


def kept_peak(key: str, folder: Path) -> float | None:
    """The peak that was kept under ``key`` [GFLOP/s]; None where there is none, or the file cannot be read."""
    value = _peaks(folder / PEAKS_FILE).get(key)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def keep_peak(key: str, gflops: float, folder: Path) -> float:
    """Keep a measurement unless a better one is kept already, and return the better one: other programs only slow it down.

    A folder that cannot be written to keeps nothing.
    """
    file = folder / PEAKS_FILE
    best = max(gflops, kept_peak(key, folder) or 0.0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(_peaks(file) | {key: best}, indent=1).encode()
        write_atomically(file, lambda stream: stream.write(content))
    except OSError:
        pass  # measured again by the next run
    return best


def known_peak(dtype: str, device: torch.device, folder: Path = Path(CACHE)) -> tuple[float, str]:
    """The peak of this machine [GFLOP/s] and, where it had to be measured, what to say of it; empty otherwise."""
    key = machine_key(dtype, device)
    kept = kept_peak(key, folder)
    if kept is not None:
        return kept, ""
    peak = keep_peak(key, matmul_gflops(dtype, BRIEFLY, device), folder)
    return peak, (
        f"matrix products of {dtype}: {peak:,.1f} GFLOP/s, measured for {BRIEFLY:g} s and kept in {folder / PEAKS_FILE} for "
        "throughput/mfu; `python -m maxent_grpo doctor` measures longer"
    )


def _peaks(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def processor_name() -> str:
    """The processor's model as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())

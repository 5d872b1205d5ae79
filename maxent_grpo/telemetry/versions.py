"""What a run was made with: versions of Python and the packages that decide its numbers, and a digest of this package."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from pathlib import Path

from maxent_grpo.config.installed import installed_version
from maxent_grpo.report.atomic import write_atomically
from maxent_grpo.report.read import VERSIONS_FILE

PACKAGES = ("torch", "transformers", "peft", "accelerate", "numpy", "tokenizers", "safetensors", "hydra-core")
"""Distributions whose version is recorded, beside Python's and this package's."""


@cache
def current_versions() -> dict[str, str]:
    """Versions by name; ``source`` is a digest of this package's own files. Nothing is imported to learn them."""
    found = {"python": platform.python_version(), "maxent-grpo": _version("maxent-grpo"), "source": _source_digest()}
    return found | {name: _version(name) for name in PACKAGES}


def write_versions(run_dir: Path) -> None:
    """Keep the versions of this process in the run directory; those of an earlier part of the run are replaced."""
    text = json.dumps(current_versions(), indent=1) + "\n"
    write_atomically(run_dir / VERSIONS_FILE, lambda file: file.write(text.encode("utf-8")))


def _version(distribution: str) -> str:
    return installed_version(distribution) or "not installed"


def _source_digest() -> str:
    """The first 12 digits of a SHA-256 over the names and contents of the package's modules."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]

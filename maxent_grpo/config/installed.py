"""What is installed, found out without importing anything."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from urllib.parse import urlsplit

from maxent_grpo.config.own_modules import added_by
from maxent_grpo.report.read import import_flags

SCRIPT = "maxent-grpo"
"""The command that installing the package makes; the same as `python train.py` in a checkout."""


def find_module(name: str) -> ModuleSpec | None:
    """Where a dotted module would be imported from, without importing it or its parents; None if it is not installed."""
    path: list[str] | None = None
    spec = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


def installed_version(distribution: str) -> str | None:
    """Version of a distribution, None where there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def has_wandb_key() -> bool:
    """Whether a key for W&B is in the environment or in the file that `wandb login` writes it to; it is not read."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    own = os.environ.get("WANDB_BASE_URL")
    hosts = {urlsplit(own).netloc} if own else {"api.wandb.ai", "api.forge.coreweave.com", "forge.coreweave.com"}
    try:
        words = Path(os.environ.get("NETRC") or Path.home() / ".netrc").expanduser().read_text(encoding="utf-8").split()
    except OSError:
        return False
    return not hosts.isdisjoint(words)


def train_command() -> str:
    """How training is started here: with the modules that added options in this process, and by the installed command where
    this process was, or where there is no train.py."""
    flags = import_flags(dict.fromkeys(added_by().values()))
    if flags:
        return " ".join(["python -m maxent_grpo", *flags, "train"])
    return SCRIPT if _is_installed() else "python train.py"


def program() -> str:
    """The name that sentences of the training command begin with: `train.py` or `maxent-grpo`."""
    return SCRIPT if _is_installed() else "train.py"


def _is_installed() -> bool:
    checkout = Path(__file__).resolve().parents[2]
    return Path(sys.argv[0]).name == SCRIPT or not (checkout / "train.py").is_file()

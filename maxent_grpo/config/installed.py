"""What is installed, found out without importing anything."""

from __future__ import annotations

from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder


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

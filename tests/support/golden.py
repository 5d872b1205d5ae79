"""Worked examples: numbers computed once, independently of the package, and kept in ``tests/golden/*.json``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN_DIR = Path(__file__).parent.parent / "golden"


def golden(name: str) -> Any:
    """The worked example called ``name``; raises KeyError when no file has it."""
    return _all_values()[name]


@cache
def _all_values() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for path in sorted(GOLDEN_DIR.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        repeated = values.keys() & content.keys()
        if repeated:
            raise ValueError(f"{path.name} repeats {sorted(repeated)}: every worked example stands in one file")
        values |= content
    return values

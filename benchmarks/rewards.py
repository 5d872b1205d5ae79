"""The reward of both sides: any number that differs between completions, so that every group has a gradient."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

RECORD = "MAXENT_BENCH_RECORD"
"""Environment variable: a file that is written the token ids of every completion rewarded, one call a line."""


def spread(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float | None]:
    """A number between 0 and 1 that depends on nothing but a completion's token ids; called as TRL calls a reward."""
    target = os.environ.get(RECORD)
    if target:
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(json.dumps([list(map(int, ids)) for ids in completion_ids]) + "\n")
    return [zlib.crc32(json.dumps(list(map(int, ids))).encode()) % 1000 / 1000 for ids in completion_ids]

"""A small run's parts for the complaints that need a real step."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.laboratory import Build, Laboratory
from support.runs import configured


@pytest.fixture
def laboratory(tmp_path: Path) -> Build:
    """Builds a laboratory from overrides, each in a folder of its own."""

    def build(*overrides: str) -> Laboratory:
        number = len(list(tmp_path.iterdir()))
        return Laboratory(configured(tmp_path / str(number), *overrides, "evaluation.enabled=false"))

    return build

"""How closely a number must agree: to rounding in double precision, to single precision's own in single."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}

both_precisions = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float64", "float32"])


def assert_equals(actual: Tensor, expected: Any, *, tolerance: float | None = None) -> None:
    """``actual`` equals ``expected`` (numbers or tensor) to the tolerance of its own precision."""
    within = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.detach().double(), wanted, rtol=within, atol=within)


def everything_valid(like: Tensor) -> Tensor:
    """A mask that marks every entry."""
    return torch.ones_like(like, dtype=torch.bool)

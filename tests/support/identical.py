"""Exact comparison of nested state: types and bits, not closeness."""

import struct
from typing import Any

import numpy as np
import torch


def assert_identical(left: Any, right: Any, where: str = "tree") -> None:
    assert type(left) is type(right), f"{where}: {type(left)} and {type(right)}"
    if isinstance(left, dict):
        assert list(left) == list(right), where
        assert [type(key) for key in left] == [type(key) for key in right], where
        for key in left:
            assert_identical(left[key], right[key], f"{where}[{key!r}]")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), where
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_identical(a, b, f"{where}[{index}]")
    elif isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape, left.device) == (right.dtype, right.shape, right.device), where
        raw = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right)]
        assert torch.equal(*raw), where
    elif isinstance(left, np.ndarray | np.generic):
        assert (left.dtype.char, left.dtype.str, left.shape) == (right.dtype.char, right.dtype.str, right.shape), where
        assert left.tobytes() == right.tobytes(), where
    elif type(left) is float:
        assert struct.pack(">d", left) == struct.pack(">d", right), where
    else:
        assert left == right, where
